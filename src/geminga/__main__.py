"""``python -m geminga``: the ``geminga`` command."""

from geminga.cli.main import main

if __name__ == "__main__":
    main()
