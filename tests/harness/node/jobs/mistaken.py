"""A driver that fails as the drivers of people do: by its exit code, an exception, or more memory than its pod may have."""

from __future__ import annotations

import sys


def main() -> None:
    match sys.argv[1]:
        case "exit":
            sys.exit(1)
        case "memory":
            kept = []
            while True:
                kept.append(bytearray(64 * 1024 * 1024))  # zeroed, so its pages are in use
        case "exception":
            raise KeyError("departure_delay")


if __name__ == "__main__":
    main()
