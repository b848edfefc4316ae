"""page.py LAUNCH TRAIN - the page of a run, over HTTP.

Three ranks train, one is paused and another killed through the page, and the run restarts and ends with the hash of an
undisturbed run.
"""
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

LAUNCH, TRAIN = sys.argv[1:3]
TOOLS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools")
OPTIONS = ("-a lenet --data synthetic --threads 1 -b 8 -p 1 --epochs 1 --test-samples 8 --save net.st --save-every 5 "
           "--resume auto --slow-network 200 --train-samples").split()
failed = 0


def expect(what, holds, more=""):
    global failed
    if not holds:
        print(f"not so: {what}", more)
        failed += 1


class Run:
    """A run with its page, in an empty folder of its own."""

    def __init__(self, name, samples, watch=True):
        os.makedirs(f"{name}/files")
        server = f"python3 '{TOOLS}/watch.py' $$ files/trace files/metrics files </dev/null >/dev/null & "
        server = server if watch else ""
        self.out = open(f"{name}/out", "w+", encoding="utf-8")      # a pipe would fill up
        self.process = subprocess.Popen(
            ["bash", "-c", f'{server}exec "$@"', "-", LAUNCH, "--max-restarts", "3", "-n", "3", "--", TRAIN, *OPTIONS,
             str(samples), "--trace", "files/trace", "--metrics", "files/metrics"],
            cwd=name, text=True, stdout=self.out, stderr=subprocess.PIPE)
        self.name, self.address, self.port = name, None, None
        while watch and not self.address:
            found = re.search(r"http://127\.0\.0\.1:(\d+)/[\w-]{22}/", self.process.stderr.readline())
            self.address, self.port = (found[0], int(found[1])) if found else (None, None)
        self.events = iter([])

    def end(self):
        """-> exit status, weight hash"""
        _, err = self.process.communicate(timeout=60)
        self.out.seek(0)
        out = self.out.read()
        found = re.search("weight hash: (.*)", out)
        expect("there is a hash", found or self.process.returncode, err)
        return self.process.returncode, found and found[1]

    def expect_gone(self):
        """The server has ended, its port is free, and its folder is removed."""
        time.sleep(0.3)         # the server waits this long for the pages to get the last events
        until = time.monotonic() + 5
        while os.path.exists(f"{self.name}/files") and time.monotonic() < until:
            time.sleep(0.05)
        expect("the folder is removed", not os.path.exists(f"{self.name}/files"))
        expect("the port is free", ask(f"{self.address}") == "refused", ask(f"{self.address}"))


def ask(address, data=None):
    """-> the status, or "refused" """
    try:
        return urllib.request.urlopen(urllib.request.Request(address, data=data), timeout=30).status
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, ConnectionError):
        return "refused"


def messages(address):
    for line in urllib.request.urlopen(address + "events", timeout=30):
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def over_http(wanted):
    run = Run("killed", 12000)
    local = f"0100007F:{run.port:04X}"
    with open("/proc/net/tcp", encoding="ascii") as table:
        expect("it listens on the loopback only", [line.split()[1] for line in table
                                                   if line.split()[1].endswith(local[8:])][:1] == [local])
    base = run.address.rsplit("/", 2)[0]
    for path in ("/", "/events", "/wrong-token/", "/wrong-token/events"):
        expect(f"{path} needs the token", ask(base + path) == 404)
    expect("so has a signal", ask(f"{base}/wrong-token/1/KILL", b"") == 404)
    expect("the page is there", ask(run.address) == 200)
    spans, states, joined, sent, first, hashes = 0, None, {}, None, [], []
    for message in messages(run.address):
        for event in message["events"]:
            if event.get("ph") == "B":
                spans += 1
                if "call" in event.get("args", {}):
                    joined.setdefault(event["args"]["call"], set()).add(event["pid"])
            elif event.get("event") == "ranks":
                states = event["ranks"]
            elif event.get("event") == "end":
                hashes.append(event["weight_hash"])
        letters = "".join(state for _, state in states or [])
        if letters == "RRR" and sent is None and spans > 300:
            for path in ("3/KILL", "-1/KILL", "1/TERM", "x/KILL", "1", ""):
                expect(f"no signal: {path}", ask(run.address + path, b"") == 404)
            expect("a pause", ask(run.address + "1/STOP", b"") == 200)
            sent = "STOP"
        elif letters == "RTR" and sent == "STOP":
            ask(run.address + "1/CONT", b"")
            sent = "CONT"
        elif letters == "RRR" and sent == "CONT":
            expect("a kill", ask(run.address + "2/KILL", b"") == 200)
            sent, first = "KILL", [pid for pid, _ in states]
    expect("all was sent", sent == "KILL", sent)
    expect("new ranks", {pid for pid, _ in states}.isdisjoint(first), (states, first))
    expect("all ranks have the same calls", sum(ranks == {0, 1, 2} for ranks in joined.values()) > 50)
    status, weights = run.end()
    expect("the killed run has the same hash", (status, [weights], weights) == (0, hashes, wanted),
           (status, weights, hashes, wanted))
    run.expect_gone()


def main():
    alone = Run("alone", 12000, watch=False)
    _, wanted = alone.end()
    over_http(wanted)
    sys.exit(failed > 0)


main()
