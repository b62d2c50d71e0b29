"""``gatekeeper serve`` again and again without importing everything again and again.

Run as a script: for each line ``HOME PORT`` on standard input it forks a process that runs the
command line's own ``main(["serve", …])``, and prints its process id. Before the next one it waits
until the last one has died.
"""

import os
import sys

import alembic.command
import psycopg
import uvicorn.protocols.http.auto

import gatekeeper.actions.start
import gatekeeper.api.app
import gatekeeper.cli.serve
import gatekeeper.plugins
from gatekeeper.cli import main

WARM = (alembic.command, psycopg, uvicorn, gatekeeper)


def run() -> None:
    gatekeeper.plugins.load("gatekeeper.traces", "otlp")
    for line in sys.stdin:
        home, port = line.rsplit(maxsplit=1)
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # only process ids go to our output
            main(["serve", "--home", home, "--port", port])
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        os.waitpid(child, 0)


if __name__ == "__main__":
    run()
