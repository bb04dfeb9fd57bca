"""Writes docs/gallery from a finished gallery: what was measured, and a small picture, of each figure.

    python docs/_tools/publish_gallery.py gallery

The pages of the site are generated from these files (`papers.py`): no number is typed. A figure that was run with
`--quick` is left out, unless `--quick-too` is said, and one that was run with `--set` always; what was published before
and is not in this gallery stays. Pictures are WebP of at most 1,200 pixels and 60 kB each.
"""

import argparse
import io
import json
import sys
from pathlib import Path, PurePath
from typing import Any

from PIL import Image

from clusterjax.experiments import EXPERIMENTS
from clusterjax.experiments.framework.listing import entries, paper_of
from clusterjax.experiments.framework.record import RESULTS, read_record


OUT = Path(__file__).resolve().parents[1] / "gallery"
WIDTHS, MOST_BYTES = (1200, 1000, 800, 640, 480, 320), 60_000
LONGEST = 16  # entries of a list of parameters that are shown
LAYERS = 40  # numbers of a series, such as one over layers, that is kept
ORDER = list(entries())
_CLAIM = ("says", "kind", "verdict", "measured", "criterion", "value", "error", "holds", "apart", "on")
_SAME = ("name", "title", "heading", "claim", "caption", "versions", "seconds", "finished")


def publish(gallery: Path, out: Path = OUT, *, quick_too: bool = False) -> list[str]:
    """The names of the figures that were written; prints why others were not."""
    written = []
    for path in sorted(gallery.glob(f"[!.]*/{RESULTS}")):
        try:
            record = read_record(path.parent)
        except ValueError as error:
            print(error, file=sys.stderr)
            continue
        if reason := _not_shown(record, quick_too):
            print(f"{record['name']}: left out, {reason}", file=sys.stderr)
            continue
        out.mkdir(parents=True, exist_ok=True)
        picture = path.parent / f"{record['name']}.png"
        small = None if picture.is_symlink() or not picture.is_file() else shrunk(picture)
        if small is not None:
            (out / f"{record['name']}.webp").write_bytes(small)
        text = json.dumps(compact(record, small is not None), indent=1, ensure_ascii=False)
        (out / f"{record['name']}.json").write_text(text + "\n", "utf-8")
        written.append(record["name"])
    return written


def _not_shown(record: dict[str, Any], quick_too: bool) -> str:
    if record["name"] not in ORDER:
        return "it is no figure of the package"
    if record["fingerprint"].get("quick") and not quick_too:
        return "it was a quick run"
    return f"its parameters were set: {record['measured_on']['changed']}" if "changed" in record["measured_on"] else ""


def compact(record: dict[str, Any], drawn: bool) -> dict[str, Any]:
    """What the site needs of a record: no long series, no machine, no path of it."""
    asks = next((one.asks for one in EXPERIMENTS if one.name == record["name"]), False)
    claims = [
        {name: claim[name] for name in _CLAIM} | {"source": claim["source"] and claim["source"]["words"]}
        for claim in record["claims"]
    ]
    return {name: record[name] for name in _SAME} | {
        "claims": claims,
        "asks": record.get("asks", asks),
        "paper": paper_of(record["name"]).title,
        "place": ORDER.index(record["name"]),
        "quick": bool(record["fingerprint"].get("quick")),
        "command": _without_folders(record.get("command")),
        "parameters": {name: _short(value) for name, value in record["parameters"].items()},
        "picture": f"{record['name']}.webp" if drawn else None,
        "series": {name: _rounded(values) for name, values in record["series"].items() if _is_short(values)},
    }


def _is_short(values: list[Any]) -> bool:
    """Pages cite single numbers of a series over layers (`results.py`), but none of a curve in time."""
    return len(values) <= LAYERS and all(isinstance(value, int | float) for value in values)


def _rounded(values: list[float]) -> list[float]:
    """To five digits, which is more than is printed."""
    return [float(f"{value:.5g}") for value in values]


def _without_folders(command: str | None) -> str | None:
    """A command without the folders of the machine that it ran on."""
    if command is None:
        return None
    return " ".join(PurePath(word).name if word.startswith(("/", "~")) else word for word in command.split(" "))


def _short(value: Any) -> Any:
    if isinstance(value, list) and len(value) > LONGEST:
        return f"{len(value)} values"
    if isinstance(value, dict) and len(value) > LONGEST:
        return f"{len(value)} values by name"
    return value


def shrunk(picture: Path) -> bytes:
    """The picture as WebP, of the best quality and the largest size that fit."""
    with Image.open(picture) as opened:
        image = opened.convert("RGB")
    for width in sorted({min(width, image.width) for width in WIDTHS}, reverse=True):
        small = image.resize((width, round(width / image.width * image.height)), Image.Resampling.LANCZOS)
        for quality in (90, 80, 70, 60, 50):
            buffer = io.BytesIO()
            small.save(buffer, "WEBP", quality=quality, method=6)
            if buffer.tell() <= MOST_BYTES:
                return buffer.getvalue()
    raise ValueError(f"{picture.name} must be a picture that fits {MOST_BYTES} bytes at 320 pixels, but it does not.")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("gallery", type=Path, help="the folder that `clusterjax reproduce --out` wrote")
    parser.add_argument("--out", type=Path, default=OUT, help="where to write (default: docs/gallery)")
    parser.add_argument("--quick-too", action="store_true", help="also figures of quick runs, which the pages mark")
    arguments = parser.parse_args(words)
    written = publish(arguments.gallery, arguments.out, quick_too=arguments.quick_too)
    size = sum(file.stat().st_size for file in arguments.out.glob("*")) if written else 0
    print(f"{len(written)} figures in {arguments.out}, {size / 1e6:.2f} MB in all")
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main())
