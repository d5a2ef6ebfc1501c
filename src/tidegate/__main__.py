"""Entry point of `python -m tidegate`, which runs the `tidegate` command."""

from tidegate.cli import main

if __name__ == "__main__":
    main()
