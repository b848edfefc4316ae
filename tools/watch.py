#!/usr/bin/env python3
"""watch.py PID TIMELINE METRICS [FOLDER] - serves a page that shows the run of PID, its parent: ./ddp run --watch.

It listens on the loopback only, and only under a path with a random token. It ends with its parent. If TIMELINE and
METRICS are only for the page, they are in FOLDER: they keep the last minutes, and FOLDER is removed at the end.
"""
import collections
import ctypes
import hmac
import http.server
import json
import os
import secrets
import shutil
import signal
import stat
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
KEPT = 100000                   # events that a page gets when it opens
MINUTES = 2                     # that the page's own files keep
SIGNALS = {name: getattr(signal, f"SIG{name}") for name in ("KILL", "STOP", "CONT")}


class Tail:
    """The new lines of a file that grows, and that a restarted run may empty. What an earlier run left is ignored."""

    def __init__(self, path, forgets):
        self.path, self.offset, self.head, self.rest = path, 0, b"", b""
        self.begin = time.time()
        self.forgets, self.marks = forgets, collections.deque()     # (time, offset)

    def forget(self, file):
        """Frees the disk blocks of what is older than MINUTES. The file keeps its size, so writers are not disturbed. A
        file system that does not support holes frees nothing."""
        now, old = time.monotonic(), None
        if self.forgets and (not self.marks or now > self.marks[-1][0] + 1):
            self.marks.append((now, self.offset))
        while self.marks and now > self.marks[0][0] + 60 * MINUTES:
            old = self.marks.popleft()[1]
        if old is not None and old > 8192:
            hole = 3                                    # PUNCH_HOLE | KEEP_SIZE; the first block tells runs apart
            ctypes.CDLL(None).fallocate(file.fileno(), hole, ctypes.c_int64(4096), ctypes.c_int64(old - 4096))

    def read(self):
        try:
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                return              # opening a pipe would wait
            with open(self.path, "r+b" if self.forgets else "rb") as file:
                if os.fstat(file.fileno()).st_mtime < self.begin:
                    return
                head = file.read(len(self.head))
                if os.fstat(file.fileno()).st_size < self.offset or head != self.head:
                    self.offset, self.head, self.rest = 0, b"", b""
                    self.marks.clear()
                file.seek(self.offset)
                lines = (self.rest + file.read()).split(b"\n")
                self.offset = file.tell()
                self.forget(file)
                if not self.head and self.offset >= 300:        # contains a time, so that each run's differs
                    file.seek(0)
                    self.head = file.read(300)
        except OSError:             # there is no file yet, or no free descriptor
            return
        self.rest = lines.pop()
        for line in lines:
            try:
                yield json.loads(line.rstrip(b","))
            except ValueError:
                continue            # the bracket at the beginning


class Ranks:
    """The parent's children, in the order of their ranks; without ranks, the parent itself."""

    def __init__(self, parent):
        self.parent, self.pids, self.killed, self.seen = parent, [], set(), None

    def look(self):
        """-> [(pid, state)]: R runs, T is paused, K died first, X has ended"""
        states = [self.state(pid) for pid in self.pids]
        with open(f"/proc/{self.parent}/task/{self.parent}/children", encoding="ascii") as file:
            children = [int(word) for word in file.read().split() if int(word) != os.getpid()]
        new = [pid for pid in children if pid not in self.pids]
        if new and (self.pids == [self.parent] or all(state in "XK" for state in states)):
            self.pids, self.killed = [], set()          # the first ranks, or those of a restart
        self.pids = self.pids + new or [self.parent]
        gone = [pid for pid in self.pids if self.state(pid) == "X"]
        if not self.killed and 0 < len(gone) < len(self.pids):
            self.killed.add(gone[0])
        return [(pid, self.state(pid)) for pid in self.pids]

    def state(self, pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                letter = file.read().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            letter = "Z"
        return ("K" if pid in self.killed else "X") if letter in "ZX" else "T" if letter == "T" else "R"

    def send(self, rank, name):
        pid = dict(enumerate(self.pids))[rank]          # a dict refuses negative ranks
        if name == "KILL":
            self.killed.add(pid)
        os.kill(pid, SIGNALS[name])


class Feed:
    """Events with their numbers, for any number of pages."""

    def __init__(self):
        self.events, self.count, self.more, self.ended = collections.deque(maxlen=KEPT), 0, threading.Condition(), False
        self.kept = []                      # (number, event): names, and what the page shows beside the lanes

    def add(self, events, ended=False):
        with self.more:
            self.events.extend(events)
            self.kept += [(self.count + i, event) for i, event in enumerate(events) if event.get("ph", "M") == "M"]
            self.count += len(events)
            if len(self.kept) > KEPT:
                self.kept = [one for i, one in enumerate(self.kept) if i % 2 or one[1].get("event") != "step"]
            self.ended |= ended
            self.more.notify_all()

    def after(self, number):
        """Waits, at most 1 s -> the events from this number on, the next number, whether these are the last"""
        with self.more:
            self.more.wait_for(lambda: self.count > number or self.ended, 1)
            new = min(self.count - number, len(self.events))
            first = [event for at, event in self.kept if at < self.count - new] if number == 0 else []
            return first + list(self.events)[len(self.events) - new:], self.count, self.ended


class Handler(http.server.BaseHTTPRequestHandler):
    token = feed = ranks = None
    timeout = 10

    def log_message(self, *_):
        pass

    def allowed(self):
        """-> the path after the token, or None"""
        token, _, rest = self.path[1:].partition("/")
        return rest if hmac.compare_digest(token.encode(), self.token.encode()) else None

    def head(self, status, kind="text/plain"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()

    def do_GET(self):
        what = self.allowed()
        if what == "" and not self.path.endswith("/"):  # without the slash, the page would ask for /events
            self.send_response(301)
            self.send_header("Location", f"{self.path}/")
            self.end_headers()
        elif what == "":
            self.head(200, "text/html; charset=utf-8")
            with open(f"{HERE}/run.html", "rb") as file:
                shutil.copyfileobj(file, self.wfile)
        elif what == "events":
            self.head(200, "text/event-stream")
            number, ended = 0, False
            while not ended:
                events, number, ended = self.feed.after(number)
                text = json.dumps({"now": time.monotonic() * 1e6, "events": events, "ended": ended})
                self.wfile.write(f"data: {text}\n\n".encode())
        else:
            self.head(404)

    def do_POST(self):
        what = (self.allowed() or "").split("/")
        try:
            self.ranks.send(int(what[0]), what[1])
            self.head(200)
        except (ValueError, IndexError, KeyError, ProcessLookupError):
            self.head(404)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):      # a closed page is no error
            super().handle_error(request, client_address)


def main():
    parent, timeline, metrics, *remove = sys.argv[1:]
    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, signal.SIG_IGN)           # the run handles it, and this process ends with the run
    parent = int(parent)        # an argument, because a short run may have ended by now
    tails, feed, ranks = [Tail(timeline, remove), Tail(metrics, remove)], Feed(), Ranks(parent)
    Handler.token, Handler.feed, Handler.ranks = secrets.token_urlsafe(16), feed, ranks
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kept = f" (the last {MINUTES} minutes are in {remove[0]})" if remove else ""
    print(f"watch this run: http://127.0.0.1:{server.server_port}/{Handler.token}/{kept}", file=sys.stderr, flush=True)
    try:
        while os.getppid() == parent and watch(tails, feed, ranks):
            time.sleep(0.05)
        feed.add([event for tail in tails for event in tail.read()], ended=True)
        time.sleep(0.3)                                 # for the pages to get it
    finally:
        for folder in remove:
            shutil.rmtree(folder, ignore_errors=True)
        server.server_close()


def watch(tails, feed, ranks):
    """-> False if the parent has just ended"""
    try:
        seen = ranks.look()
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:                                     # no descriptor at the moment
        return True
    new = [event for tail in tails for event in tail.read()]
    if seen != ranks.seen:
        ranks.seen = seen
        new.append({"event": "ranks", "ranks": seen, "ts": time.monotonic() * 1e6})
    if new:
        feed.add(new)
    return True


if __name__ == "__main__":
    main()
