"""Writes docs/gallery from a finished gallery: the measurements and a small picture of each figure.

    python docs/_tools/publish_gallery.py gallery

`gallery_pages.py` and `papers.py` generate pages of the site from these files. A figure that was run with `--quick` is
left out unless `--quick-too` is given, and a figure that was run with `--set` is always left out. Published figures
that are not in the gallery are kept. Pictures are WebP files of at most 1,200 pixels width and 60 kB each.
"""

import argparse
import io
import json
import shlex
import sys
from pathlib import Path, PurePath
from typing import Any

from PIL import Image

from clusterjax.experiments.framework.listing import entries, paper_of
from clusterjax.experiments.framework.record import RESULTS, read_record


OUT = Path(__file__).resolve().parents[1] / "gallery"
WIDTHS, MOST_BYTES = (1200, 1000, 800, 640, 480, 320), 60_000
LONGEST = 16  # the largest number of entries of a parameter that is shown whole
LAYERS = 40  # the largest number of entries of a series that is kept, such as a series over layers
ORDER = list(entries())
_CLAIM = ("says", "kind", "verdict", "measured", "criterion", "value", "error", "holds", "apart", "on")
_SAME = ("name", "title", "heading", "claim", "asks", "caption", "versions", "seconds", "finished")


def publish(gallery: Path, out: Path = OUT, *, quick_too: bool = False) -> list[str]:
    """Write the figures of a gallery, print the reasons why others are left out, and return the names of the figures
    that were written."""
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
    """The parts of a record that the site needs, without long series, the machine and its paths."""
    claims = [
        {name: claim[name] for name in _CLAIM} | {"source": claim["source"] and claim["source"]["words"]}
        for claim in record["claims"]
    ]
    return {name: record[name] for name in _SAME} | {
        "claims": claims,
        "paper": paper_of(record["name"]).title,
        "place": ORDER.index(record["name"]),
        "quick": bool(record["fingerprint"].get("quick")),
        "command": _without_folders(record["command"]),
        "parameters": {name: _short(value) for name, value in record["parameters"].items()},
        "picture": f"{record['name']}.webp" if drawn else None,
        "series": {name: _rounded(values) for name, values in record["series"].items() if _is_short(values)},
    }


def _is_short(values: list[Any]) -> bool:
    """True for a series over layers, of which pages cite single numbers (`results.py`), and not for a curve in time."""
    return len(values) <= LAYERS and all(isinstance(value, int | float) for value in values)


def _rounded(values: list[float]) -> list[float]:
    # No page prints more than five digits.
    return [float(f"{value:.5g}") for value in values]


def _without_folders(command: str | None) -> str | None:
    """A command without the folders of the machine on which it ran."""
    if command is None:
        return None
    words = shlex.split(command)
    return shlex.join(PurePath(word).name if word.startswith(("/", "~")) else word for word in words)


def _short(value: Any) -> Any:
    if isinstance(value, list) and len(value) > LONGEST:
        return f"{len(value)} values"
    if isinstance(value, dict) and len(value) > LONGEST:
        return f"{len(value)} values by name"
    return value


def shrunk(picture: Path) -> bytes:
    """The picture as WebP, of the largest size and then the best quality within `MOST_BYTES`."""
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
    parser.add_argument("gallery", type=Path, help="folder that `clusterjax reproduce --out` wrote")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results (default: docs/gallery)")
    parser.add_argument("--quick-too", action="store_true", help="also publish quick runs, which the pages mark")
    arguments = parser.parse_args(words)
    written = publish(arguments.gallery, arguments.out, quick_too=arguments.quick_too)
    size = sum(file.stat().st_size for file in arguments.out.glob("*")) if written else 0
    print(f"{len(written)} figure{'s' * (len(written) != 1)} in {arguments.out}, {size / 1e6:.2f} MB in all")
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main())
