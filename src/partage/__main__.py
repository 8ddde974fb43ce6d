"""``python -m partage``: the command."""

from partage.cli.main import main

if __name__ == "__main__":
    main()
