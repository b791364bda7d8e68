"""``python -m tests.experiments.serving.watched_server <file> <overrides>``: a server whose every connection is noted.

Each connection that this process opens, and each name that it looks up, is a line of the file.
"""

import sys
from typing import Any

FILE = sys.argv[1]
WATCHED = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request")


def note(event: str, arguments: tuple[Any, ...]) -> None:
    if event in WATCHED:
        with open(FILE, "a", encoding="utf-8") as file:
            file.write(f"{event} {arguments[-1] if event == 'socket.connect' else arguments!r}\n")


if __name__ == "__main__":
    from experiments.run import main

    del sys.argv[1]
    sys.addaudithook(note)
    main()
