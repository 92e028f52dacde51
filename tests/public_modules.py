"""Print the files that `albertkit/__init__.pyi` exports from, for `mypy --strict` in `make check`."""

import importlib.util

import albertkit

if __name__ == "__main__":
    for module in sorted(set(albertkit._MODULES.values())):
        spec = importlib.util.find_spec(module)
        print(spec.origin if spec else "")
