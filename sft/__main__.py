"""python -m sft"""

from sft.cli import main

main()
