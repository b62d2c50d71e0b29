"""What an import may load; the import contracts themselves run as `lint-imports`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def modules_after(statement: str) -> set[str]:
    code = f"{statement}; import sys, json; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in json.loads(out.stdout)}


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import gatekeeper.cli", {"torch", "transformers", "fastapi", "sqlalchemy", "pandas"}),
        (
            "import gatekeeper.client",
            {"numpy", "pandas", "sqlalchemy", "fastapi", "torch", "scipy", "statsmodels"},
        ),
        ("import gatekeeper.cli.profile", {"torch", "pandas", "sqlalchemy", "fastapi", "scipy"}),
        (
            "import gatekeeper.reports.route_html, gatekeeper.reports.route_terminal",
            {"numpy", "pandas", "scipy", "sqlalchemy", "fastapi", "matplotlib"},
        ),
        (
            # What `serve` imports: idle it may use 110 MiB, and these libraries alone take more.
            "import uvicorn, gatekeeper.actions.start, gatekeeper.api.app",
            {"torch", "transformers", "gatekeeper_adapters", "numpy", "pandas", "scipy"}
            | {"statsmodels", "pyarrow", "matplotlib", "jinja2", "httpx"},
        ),
        ("import gatekeeper.worker.runner", {"torch", "sqlalchemy", "fastapi"}),
        (
            "import gatekeeper_adapters.engines.reference.server.command",
            {"torch", "transformers", "starlette", "uvicorn", "pandas"},
        ),
    ],
)
def test_an_import_loads_only_what_it_needs(statement: str, forbidden: set[str]) -> None:
    assert not modules_after(statement) & forbidden


def test_listing_engines_loads_no_model_library() -> None:
    loaded = modules_after(
        "from gatekeeper import plugins; plugins.load('gatekeeper.engines', 'reference')"
    )
    assert "gatekeeper_adapters" in loaded
    assert "torch" not in loaded


def test_profile_needs_no_more_than_the_first_seconds_of_make_demo_install() -> None:
    line = next(
        line
        for line in (Path(__file__).parents[1] / "Makefile").read_text().splitlines()
        if "opentelemetry-proto" in line
    )
    assert {"click", "rich", "opentelemetry-proto"} <= set(line.split())
    statement = (
        "from gatekeeper import plugins; import gatekeeper.cli.profile; "
        "plugins.load_all('gatekeeper.traces')"
    )
    installed = {"click", "rich", "opentelemetry", "google", "pygments", "markdown_it"}
    ours = {"gatekeeper", "gatekeeper_adapters"}
    foreign = {
        name
        for name in modules_after(statement) - installed - ours - set(sys.stdlib_module_names)
        if not name.startswith("_")
    }
    assert foreign <= {"mdurl", "sitecustomize", "usercustomize"}
