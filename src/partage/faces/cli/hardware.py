"""The helper by the name that charts up to 0.1 start it with: ``python -m partage.faces.cli.hardware``.

For one release: a node may get the new image before the new chart.
"""

from partage.answers.process_start import lean_imports
from partage.cli.hardware import main

if __name__ == "__main__":
    with lean_imports():
        main()
