#!/bin/sh
# The tests with the oldest releases that pyproject.toml admits of what the package itself asks for; the newest of the rest.
#
#   tests/oldest.sh base [ARGUMENTS OF PYTEST]    without trained networks, whose libraries ask for a newer jax
#   tests/oldest.sh all [ARGUMENTS OF PYTEST]     all extras
#
# Deprecations are not errors here: old releases are full of them, seen from the newest releases of the rest.
# ENVIRONMENTS=folder keeps the environment there (default: a folder that is removed); PYTHON=python3.12 takes another
# Python than 3.11; LOCK=1 ends when it is made, with the list of what is in it.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
kind=${1:-all}
[ $# -eq 0 ] || shift
case $kind in
base) extras="--extra plot --extra sweep" ;;
all) extras="--extra all" ;;
*)
    echo "tests/oldest.sh takes base or all, but was given $kind." >&2
    exit 2
    ;;
esac
where=${ENVIRONMENTS:-$(mktemp -d)}
[ -n "${ENVIRONMENTS:-}" ] || trap 'rm -rf "$where"' EXIT
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
environment=$where/oldest-$kind
"$python" -m venv "$environment"
pip="$environment/bin/python -m pip --disable-pip-version-check --quiet"
# uv chooses, in an environment of its own; pip has no such choice.
"$python" -m venv "$where/uv"
"$where/uv/bin/python" -m pip --disable-pip-version-check --quiet install uv
# shellcheck disable=SC2086
"$where/uv/bin/uv" --quiet pip compile --resolution lowest-direct --python "$environment/bin/python" $extras \
    "$root/pyproject.toml" --output-file "$where/oldest-$kind.txt"
$pip install --requirement "$where/oldest-$kind.txt"
$pip install --no-deps --editable "$root"
$pip install --constraint "$where/oldest-$kind.txt" 'pytest>=8' 'pytest-xdist>=3.6' 'beartype>=0.20'
$pip list
[ -z "${LOCK:-}" ] || exit 0
cd "$root"
case $kind in
# Of the parts that the base package and these two extras hold; the others need trained networks.
base) tests="tests/model tests/dynamics tests/hardmax tests/observables tests/phase tests/plot tests/sweep tests/summation
    tests/base/test_batching.py --ignore=tests/model/test_factors.py" ;;
# What reads the notebooks, the site and the workflows needs their tools.
all) tests="tests --ignore=tests/house --ignore=tests/site" ;;
esac
# shellcheck disable=SC2086
JAX_PLATFORMS=cpu "$environment/bin/python" -m pytest -W ignore::DeprecationWarning \
    -W ignore::PendingDeprecationWarning -W ignore::FutureWarning $tests "$@"
