"""For clients of a service on loopback that speaks plain HTTP.

A client reads the certificates of all authorities when it is made: 20 ms of processor time, many
hundred times. With this context it reads none, and would believe no server over TLS.
"""

from __future__ import annotations

import ssl

NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
