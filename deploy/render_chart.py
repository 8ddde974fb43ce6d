#!/usr/bin/env python3
"""render: write the manifests that come out of the chart, with helm.

deploy/manifests/partage.yaml is for people without Helm. tests/deploy/rendered/ has the chart with other
values, which `make check` tests without helm. Each file begins with a digest of what it was made from.
deploy/helm/partage/files/ are copies of the alerts and dashboards: a chart can hold nothing from outside its
folder, and not every way in which a repository is kept or packed preserves symbolic links.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "partage"
VALUES = ROOT / "tests" / "deploy" / "values"
NAMESPACE = """\
apiVersion: v1
kind: Namespace
metadata:
  name: partage
  # The hardware helper is privileged.
  labels: {pod-security.kubernetes.io/enforce: privileged}
---
"""


def copies() -> dict[Path, Path]:
    """File of the chart, and the file that it is a copy of."""
    dashboards = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
    originals = (*dashboards, ROOT / "deploy" / "prometheus" / "partage.rules.yaml")
    return {CHART / "files" / original.name: original for original in originals}


def outputs() -> dict[Path, Path | None]:
    """File to write, and the values it is rendered with."""
    rendered = {
        ROOT / "tests" / "deploy" / "rendered" / values.name: values
        for values in sorted(VALUES.glob("*.yaml"))
    }
    return {ROOT / "deploy" / "manifests" / "partage.yaml": None, **rendered}


def digest(values: Path | None) -> str:
    """Of all that goes into one rendering."""
    found = hashlib.sha256()
    rendered = sorted(path for path in CHART.rglob("*") if path.is_file() and path.name != "README.md")
    for file in (*rendered, *([values] if values else ())):
        found.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()


def header(values: Path | None) -> str:
    """The first lines of a rendered file."""
    return f"# Written by `make chart` from deploy/helm/partage; do not edit.\n# digest: {digest(values)}\n"


def main() -> None:
    """Write all of them."""
    for copy, original in copies().items():
        copy.unlink(missing_ok=True)  # it may be a link
        copy.write_bytes(original.read_bytes())
    for path, values in outputs().items():
        options = ["-f", str(values)] if values else []
        command = ["helm", "template", "partage", str(CHART), "--namespace", "partage", *options]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(header(values) + ("" if values else NAMESPACE) + text)
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
