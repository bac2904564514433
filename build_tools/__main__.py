"""``python -m build_tools``: the command te-wheel, straight from a checkout."""

from build_tools.cli import entry_point

if __name__ == "__main__":
    entry_point()
