"""Whether the container is alive, for Docker's HEALTHCHECK: exit code 0 or 1. The image has no curl."""

import http.client
import os
import sys

port = int(os.environ.get("BENTOML_PORT") or os.environ.get("PORT") or "14011")
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
try:
    connection.request("GET", "/livez")
    sys.exit(connection.getresponse().status != 200)
except OSError as error:
    sys.exit(f"no answer on port {port}: {error}")
