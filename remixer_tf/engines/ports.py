"""The port at which a process listens to the others."""

import socket

from remixer_tf.errors import StorageError


def listen(port, me, where):
    """Returns a socket that listens at `port`, an int, on all addresses.

    `me` names this process and `where` the place of the port in its configuration, for
    the StorageError if the port is taken. `socket.create_server` sets SO_REUSEADDR, so
    a server can take the port as soon as the socket is closed.
    """
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", error)
        raise StorageError(
            f"{me} cannot listen at port {port}: {reason}. Give it a free port "
            f"in {where}."
        ) from None
