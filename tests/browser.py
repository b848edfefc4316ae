"""Drives a headless Chromium through its debugging pipe.

    page = Page("http://127.0.0.1:..."); page.js("document.title"); page.wait("...", 10); page.close()
"""
import json
import os
import shutil
import subprocess
import tempfile
import time


def find():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    def __init__(self, address, size="1280,800"):
        self.profile, self.number, self.rest = tempfile.mkdtemp(), 0, b""
        self.errors = []
        ours, theirs = os.pipe(), os.pipe()

        def pipe_to_3_and_4():
            os.dup2(os.dup(ours[0]), 3)
            os.dup2(os.dup(theirs[1]), 4)

        read, write = os.dup(theirs[0]), os.dup(ours[1])
        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", f"--user-data-dir={self.profile}", f"--window-size={size}",
             "--remote-debugging-pipe", "about:blank"],
            preexec_fn=pipe_to_3_and_4, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        for end in (*ours, *theirs):
            os.close(end)
        self.read, self.write, self.session = read, write, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.call("Page.navigate", url=address)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                some = os.read(self.read, 1 << 20)
                if not some:
                    raise RuntimeError("chromium has ended")
                self.rest += some
            text, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(text)
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(answer["params"]["exceptionDetails"])[:600])
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def js(self, text):
        result = self.call("Runtime.evaluate", expression=text, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{text}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, text, seconds):
        """Waits until this JavaScript is true, or for these seconds -> whether it became true."""
        until = time.monotonic() + seconds
        while not self.js(f"document.readyState === 'complete' && !!({text})"):
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def click(self, selector):
        """Clicks as a mouse does, in the middle of the element."""
        box = self.js(f"(r => r && [r.x + r.width / 2, r.y + r.height / 2])"
                      f"(document.querySelector('{selector}')?.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def close(self):
        self.process.terminate()
        self.process.wait()
        os.close(self.read)
        os.close(self.write)
        shutil.rmtree(self.profile, ignore_errors=True)
