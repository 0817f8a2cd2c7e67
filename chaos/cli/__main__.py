"""Entry point of `python -m chaos.cli`."""

from chaos.cli.main import main

main()
