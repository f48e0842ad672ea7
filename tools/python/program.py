"""Runs a module of this repository as a program, like `python -m`.

The first argument is the module, the others are the program's arguments.
"""

import runpy
import sys

runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)
