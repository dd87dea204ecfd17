"""Try to get into the listening ports of somebody's run, as another account on the same machine would.

`python -m tests.campaigns.intruder PORT ...` prints as JSON, for each port, which of the attempts got an answer.
"""

import asyncio
import json
import logging
import os
import socket
import ssl
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import dask
from distributed import Client, Security
from distributed.core import rpc

SECONDS = 2.0


def client(port: int, security: Security | None) -> Any:
    address = f"{'tls' if security else 'tcp'}://127.0.0.1:{port}"
    with Client(address, security=security, timeout=SECONDS) as found:
        return found.run_on_scheduler(os.getuid)


def identity(port: int, security: Security | None) -> Any:
    """Ask a worker or nanny, which a client cannot connect to, who it is."""

    async def ask() -> Any:
        arguments = security.get_connection_args("worker") if security else None
        remote = rpc(f"{'tls' if security else 'tcp'}://127.0.0.1:{port}", connection_args=arguments, timeout=SECONDS)
        try:
            return str(await asyncio.wait_for(remote.identity(), SECONDS))[:80]
        finally:
            await remote.close_rpc()

    return asyncio.run(ask())


def http(port: int, wrapped: bool) -> Any:
    """Ask for a page, over TLS without a certificate of one's own if wrapped."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), SECONDS) as plain:
        stream = context.wrap_socket(plain) if wrapped else plain
        stream.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        return stream.recv(100)


def attempts(port: int) -> dict[str, Callable[[], Any]]:
    foreign = Security.temporary()
    return {
        "client": lambda: client(port, None),
        "client with another certificate": lambda: client(port, foreign),
        "remote call": lambda: identity(port, None),
        "remote call with another certificate": lambda: identity(port, foreign),
        "page": lambda: http(port, False),
        "page without a certificate": lambda: http(port, True),
    }


def main(ports: list[int]) -> dict[int, dict[str, str]]:
    """Make all attempts at once and return the answers; none is an empty string."""
    dask.config.set({"distributed.comm.timeouts.connect": SECONDS, "distributed.comm.retry.count": 0})
    logging.disable()
    pool = ThreadPoolExecutor(100)
    running = {port: {name: pool.submit(attempt) for name, attempt in attempts(port).items()} for port in ports}
    wait([each for tried in running.values() for each in tried.values()], 10 * SECONDS)

    def answer(attempt: Future[Any]) -> str:
        is_answered = attempt.done() and attempt.exception() is None  # a refusal may look like anything, or never come
        return str(attempt.result()) if is_answered and attempt.result() not in (None, b"") else ""

    return {port: {name: answer(attempt) for name, attempt in tried.items()} for port, tried in running.items()}


if __name__ == "__main__":
    print(json.dumps(main([int(word) for word in sys.argv[1:]])), flush=True)
    os._exit(0)  # without waiting for what never answers
