"""A back end for Millrace, with the standard library: authenticates, authorizes, answers calls, keeps a roster."""
import hashlib
import hmac
import json
import os
import re
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = os.environ["HOOKS_SECRET"].encode()
# Here the token is the name of the user. In your application, look the token up in your sessions.
USERS = {"ann-token": {"subject": "ann", "name": "Ann"}, "bob-token": {"subject": "bob", "name": "Bob"}}
PERMISSIONS = ["publish", "subscribe", "history", "presence"]


def refuse(code, detail):
    return {"allow": False, "code": code, "detail": detail}


def connect(question):
    """Authenticates the client, and grants what it may do."""
    user = USERS.get(question.get("token"))
    if not user:
        return refuse("unknown_user", "log in first")
    grants = [{"permission": permission, "pattern": "chat/#"} for permission in PERMISSIONS]
    return {"allow": True, "ttl_s": 60, "subject": user["subject"], "info": {"name": user["name"]}, "grants": grants}


def subscribe(question):
    """Everyone reads the chat; only Ann reads what the staff writes."""
    if question["channel"] == "chat/staff" and question.get("subject") != "ann":
        return refuse("not_staff", "only the staff reads this channel")
    return {"allow": True, "ttl_s": 60}


def publish(question):
    """Refuses unwanted messages, and adds the name of the sender, which the client cannot forge."""
    data = question["data"] if isinstance(question["data"], dict) else {}
    if re.search(r"\bspam\b", str(data.get("text")), re.IGNORECASE):
        return refuse("unwanted", "this message is not wanted here")
    return {"allow": True, "data": {**data, "from": question.get("subject")}}


def rpc(question):
    """Answers remote procedure calls."""
    if question["method"] == "chat/greet":
        name = (question.get("params") or {}).get("name", question.get("subject"))
        return {"result": f"Hello {name}"}
    if question["method"] == "chat/who":
        return {"result": list(ROSTER.get((question.get("params") or {}).get("channel"), {}).values())}
    return {"error": {"code": "no_method", "detail": f"there is no method {question['method']}"}}


# Names of the members of each channel, by member id. Your application would keep them in its database.
ROSTER = {}
# Ids of handled events: an event may arrive twice.
HANDLED = {}


def receive(event):
    """Handles an event of a webhook once."""
    if HANDLED.setdefault(event["id"], event) is not event:
        return
    if len(HANDLED) > 100_000:
        del HANDLED[next(iter(HANDLED))]
    channel, member = event.get("channel"), event.get("member")
    print(event["type"], channel or event.get("connection"), member or "", flush=True)
    if event["type"] == "joined":
        ROSTER.setdefault(channel, {})[member] = (event.get("info") or {}).get("name", member)
    elif event["type"] == "left":
        ROSTER.get(channel, {}).pop(member, None)
    elif event["type"] == "vacated":
        ROSTER.pop(channel, None)


HOOKS = {"connect": connect, "subscribe": subscribe, "publish": publish, "rpc": rpc}


def is_signed(header, body):
    """Returns whether Millrace has signed this body within the last five minutes."""
    parts = [part.split("=", 1) for part in header.split(",") if "=" in part]
    sent_s = next((value for name, value in parts if name == "t"), "")
    if not sent_s.isdigit() or abs(time.time() - int(sent_s)) > 300:
        return False
    expected = hmac.new(SECRET, sent_s.encode() + b"." + body, hashlib.sha256).hexdigest()
    return any(name == "v1" and hmac.compare_digest(value, expected) for name, value in parts)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are reused

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if not is_signed(self.headers.get("millrace-signature", ""), body):
            return self.reply(401)
        message = json.loads(body)
        if self.path == "/hooks":
            return self.reply(200, HOOKS[message["hook"]](message))
        if self.path == "/webhooks":
            for event in message["events"]:
                receive(event)
            return self.reply(200)
        return self.reply(404)

    def reply(self, status, answer=None):
        body = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "3000"))), Handler)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
