#!/usr/bin/env python3
"""Says one line to an agent and shows what comes back. Standard library only.

    chat.py [--server URL] [--session ID] AGENT LINE

Shows tokens as they come, tool calls, and the files the agent hands over, which are saved in the
current folder. A stream that breaks off is taken up again where it was, for ever.
"""

import argparse
import json
import pathlib
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid


def call(url, body=None, headers=()):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **dict(headers)})
    return urllib.request.urlopen(request, timeout=60)


def events(server, session, turn):
    """The events and tokens of a turn, over any number of broken streams."""
    seen = 0
    while True:
        url = f"{server}/v1/sessions/{session}/log?turn_id={turn}"
        try:
            with call(url, headers={"accept": "text/event-stream", "last-event-id": str(seen)}) as stream:
                frame = {}
                for line in stream:
                    field, _, value = line.decode().rstrip("\r\n").partition(":")
                    if field:
                        frame[field] = value.removeprefix(" ")
                    elif "data" in frame:
                        seen = int(frame.get("id", seen))
                        yield frame["event"], json.loads(frame["data"])
                        frame = {}
        except urllib.error.HTTPError:
            raise
        except OSError:
            time.sleep(0.2)  # the server is gone for a moment: what it acknowledged is not


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://127.0.0.1:7700")
    parser.add_argument("--session", default=str(uuid.uuid4()))
    parser.add_argument("agent")
    parser.add_argument("line")
    args = parser.parse_args()
    session, turn = args.session, str(uuid.uuid4())
    message = {"role": "user", "content": args.line}
    body = {"type": "client.message", "agent_id": args.agent, "turn_id": turn, "message": message}
    try:
        # Sent again under the same turn id it would run once, so a lost answer is no harm.
        call(f"{args.server}/v1/sessions/{session}/input", body).close()
        for kind, data in events(args.server, session, turn):
            event = data.get("event", {})
            if kind == "llm.token.delta":
                print(data.get("text", ""), end="", flush=True)
            elif kind == "call.requested" and event["call"]["work"]["type"] == "tool_call":
                print(f"-> {event['call']['work']['name']} {event['call']['work']['arguments']}")
            elif kind == "file.delivered":
                path = event["file"]["path"]
                url = f"{args.server}/v1/sessions/{session}/files/{urllib.parse.quote(path)}"
                with call(url) as download:
                    pathlib.Path(pathlib.PurePosixPath(path).name).write_bytes(download.read())
                print(f"delivered {path} ({event['file']['bytes']} bytes)")
            elif kind == "turn.ended" and event["turn_id"] == turn:
                print()
                if event["status"] == "failed":
                    sys.exit(f"the turn failed: {event['error']['code']}: {event['error']['message']}")
                return
    except urllib.error.HTTPError as error:
        sys.exit(f"{json.load(error).get('detail', error)}")


if __name__ == "__main__":
    main()
