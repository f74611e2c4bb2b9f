"""``python -m simic`` is the command ``simic``."""

from simic.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
