"""Draw pictures: `python -m docs.pictures FOLDER [NAME ...]`, all of them if none is named."""

from __future__ import annotations

import argparse
from pathlib import Path

from docs.pictures.drawing import draw_picture, names_of_pictures

parser = argparse.ArgumentParser(prog="python -m docs.pictures", description=__doc__)
parser.add_argument("folder", type=Path, help="where the files are to be")
parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names_of_pictures())}")
arguments = parser.parse_args()
for name in arguments.names or names_of_pictures():
    draw_picture(name, arguments.folder)
