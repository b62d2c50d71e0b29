"""A plain proxy that sends each request to the speculative or to the plain pool of servers.

    GATEKEEPER_URL=… GATEKEEPER_TOKEN=… python pool_proxy.py ROUTE SPECULATIVE_URL PLAIN_URL [PORT]

The choice is the ten lines of ``Pools``; the rest forwards bytes. A request goes to the plain pool
whenever the decision is a bypass, is not known, or could not be renewed.
"""

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from gatekeeper.client import ENABLE, DecisionClient, RequestContext


class Pools:
    def __init__(self, decisions, route, speculative, plain):
        self.decisions, self.route = decisions, route
        self.speculative, self.plain, self.active = speculative, plain, 0

    def choose(self, max_tokens=None):
        context = RequestContext(concurrency=self.active + 1, remaining_tokens=max_tokens)
        enabled = self.decisions.decide(self.route, context).action == ENABLE
        return self.speculative if enabled else self.plain


def handler(pools, http):
    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            url = pools.choose()
            pools.active += url == pools.speculative
            try:
                headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
                answer = http.post(url + self.path, content=body, headers=headers)
            finally:
                pools.active -= url == pools.speculative
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_):
            pass

    return Proxy


def main(route, speculative, plain, port="8080"):
    url, token = os.environ["GATEKEEPER_URL"], os.environ["GATEKEEPER_TOKEN"]
    with DecisionClient(url, token) as decisions, httpx.Client(timeout=600) as http:
        decisions.start(stream=True)
        pools = Pools(decisions, route, speculative, plain)
        with ThreadingHTTPServer(("127.0.0.1", int(port)), handler(pools, http)) as server:
            print(f"http://127.0.0.1:{server.server_port}", flush=True)
            server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
