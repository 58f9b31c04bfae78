"""Uses paho-mqtt as a device does: run.py MQTT HTTP MQTT_TLS HTTPS CA. The first two are ports of a server without
TLS, the next two those of a server with TLS, whose authority is in the file CA.

Every case runs over TCP, TLS, WebSocket and WebSocket over TLS, with MQTT 3.1.1 and 5.
"""

import json
import queue
import ssl
import sys
import urllib.request

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

mqtt_port, http_port, mqtts_port, https_port = map(int, sys.argv[1:5])
ca = sys.argv[5]
PATIENCE_S = 20
# Name of the transport, its port, the port of HTTP, and whether it uses TLS.
TRANSPORTS = [
    ("tcp", mqtt_port, http_port, False),
    ("websockets", http_port, http_port, False),
    ("tcp", mqtts_port, https_port, True),
    ("websockets", https_port, https_port, True),
]
VERSIONS = {"MQTT 3.1.1": mqtt.MQTTv311, "MQTT 5": mqtt.MQTTv5}
checks = 0


def check(what, found, expected):
    global checks
    if found != expected:
        sys.exit("FAILED: %s: expected %r, found %r" % (what, expected, found))
    checks += 1


class Device:
    """A client of paho-mqtt. Its events are in queues, so that the cases can wait for them."""

    def __init__(self, world, name="", clean=True, will=None):
        transport, port, _, is_tls, version = world
        options = {} if version == mqtt.MQTTv5 else {"clean_session": clean}
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, name, transport=transport, protocol=version, **options)
        self.events = {kind: queue.Queue() for kind in ("connected", "ended", "subscribed", "published", "message")}
        client, events = self.client, self.events
        client.on_connect = lambda _, __, flags, reason, ___: events["connected"].put((flags.session_present, reason))
        client.on_disconnect = lambda _, __, ___, reason, ____: events["ended"].put(reason)
        client.on_subscribe = lambda _, __, ___, reasons, ____: events["subscribed"].put(reasons)
        client.on_publish = lambda _, __, ___, reason, ____: events["published"].put(reason)
        client.on_message = lambda _, __, message: events["message"].put(message)
        if transport == "websockets":
            client.ws_set_options(path="/mqtt")
        if is_tls:
            client.tls_set(ca_certs=ca)
        if will:
            client.will_set(*will)
        more = {}
        if version == mqtt.MQTTv5:
            more = {"clean_start": clean, "properties": Properties(PacketTypes.CONNECT)}
            more["properties"].SessionExpiryInterval = 60
        client.connect("127.0.0.1", port, keepalive=30, **more)
        client.loop_start()
        self.session_present, reason = self.next("connected")
        check("CONNACK", reason.is_failure, False)

    def next(self, kind):
        try:
            return self.events[kind].get(timeout=PATIENCE_S)
        except queue.Empty:
            sys.exit("FAILED: no event `%s` within %d s" % (kind, PATIENCE_S))

    def subscribe(self, topic, qos):
        self.client.subscribe(topic, qos)
        check("SUBACK of " + topic, [reason.value for reason in self.next("subscribed")], [qos])

    def publish(self, topic, payload, qos, **more):
        self.client.publish(topic, payload, qos, **more)
        return self.next("published")

    def messages(self, count):
        found = [self.next("message") for _ in range(count)]
        return [(message.topic, message.payload.decode()) for message in found]

    def end(self):
        self.client.disconnect()
        self.next("ended")
        self.client.loop_stop()

    def lose(self):
        """Ends the connection without DISCONNECT."""
        self.client.on_disconnect = None
        self.client.loop_stop()
        self.client.socket().close()


def http(world, method, path, body=None):
    _, _, port, is_tls, _ = world
    url = "%s://127.0.0.1:%d%s" % ("https" if is_tls else "http", port, path)
    context = ssl.create_default_context(cafile=ca) if is_tls else None
    request = urllib.request.Request(url, body, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:
        return json.load(answer)


def exchange(world, base):
    """Each quality of service in both directions, beside HTTP."""
    device = Device(world)
    device.subscribe(base + "/+", 2)
    for qos in (0, 1, 2):
        device.publish("%s/%d" % (base, qos), "quality %d" % qos, qos)
    http(world, "POST", "/v1/channels/%s/http" % base, b"over http")
    expected = [("%s/%d" % (base, qos), "quality %d" % qos) for qos in (0, 1, 2)] + [(base + "/http", "over http")]
    check("messages in order", device.messages(4), expected)
    history = http(world, "GET", "/v1/channels/%s/2?since=earliest" % base)
    check("history", [message["data"] for message in history["messages"]], ["quality 2"])
    device.end()


def retain(world, base):
    """The newest value is kept, and an empty one removes it."""
    device = Device(world)
    device.publish(base + "/status", "parked", 1, retain=True)
    reader = Device(world)
    reader.subscribe(base + "/#", 1)
    message = reader.next("message")
    check("retained", (message.payload, message.retain), (b"parked", True))
    device.publish(base + "/status", "", 1, retain=True)
    message = reader.next("message")
    check("removal is delivered", (message.payload, message.retain), (b"", False))
    late = Device(world)
    late.subscribe(base + "/#", 1)
    device.publish(base + "/status", "driving", 1)
    check("not retained", late.messages(1), [(base + "/status", "driving")])
    for one in (device, reader, late):
        one.end()


def will(world, base):
    """The will of a lost client is published, that of a client that disconnects is not."""
    reader = Device(world)
    reader.subscribe(base + "/+", 1)
    Device(world, will=(base + "/orderly", "lost", 1)).end()
    Device(world, will=(base + "/gone", "lost", 1)).lose()
    check("will", reader.messages(1), [(base + "/gone", "lost")])
    reader.end()


def session(world, base):
    """Publications of an absence arrive when the client is back, in order and once."""
    name = base.replace("/", "-")
    away = Device(world, name, clean=True)
    away.end()
    away = Device(world, name, clean=False)
    away.subscribe(base, 1)
    away.end()
    writer = Device(world)
    sent = [(base, "message %d" % number) for number in range(50)]
    for topic, payload in sent:
        check("PUBACK", writer.publish(topic, payload, 1).is_failure, False)
    back = Device(world, name, clean=False)
    check("session present", back.session_present, True)
    check("messages of the absence", back.messages(50), sent)
    writer.publish(base, "live", 1)
    check("then live ones", back.messages(1), [(base, "live")])
    back.end()
    writer.end()


def properties(world, base):
    """MQTT 5: properties are kept, and a refusal has its reason."""
    device = Device(world)
    device.client.subscribe(base, options=SubscribeOptions(qos=1, noLocal=False))
    device.next("subscribed")
    sent = Properties(PacketTypes.PUBLISH)
    sent.UserProperty = ("unit", "km/h")
    sent.ContentType = "text/plain"
    sent.ResponseTopic = base + "/answers"
    sent.CorrelationData = b"17"
    sent.MessageExpiryInterval = 60
    device.publish(base, "87", 1, properties=sent)
    found = device.next("message").properties
    check("user property", found.UserProperty, [("unit", "km/h")])
    check("content type", found.ContentType, "text/plain")
    check("response topic", found.ResponseTopic, base + "/answers")
    check("correlation data", found.CorrelationData, b"17")
    check("message expiry", 0 < found.MessageExpiryInterval <= 60, True)
    check("topic name invalid", device.publish("no channel", "x", 1).value, 0x90)
    device.client.subscribe("no channel", 1)
    check("topic filter invalid", [reason.value for reason in device.next("subscribed")], [0x8F])
    device.end()


for transport, port, other, is_tls in TRANSPORTS:
    for version, number in VERSIONS.items():
        world = (transport, port, other, is_tls, number)
        base = "paho/%s/%s/%d" % (transport, "tls" if is_tls else "plain", number)
        for case in [exchange, retain, will, session] + ([properties] if number == mqtt.MQTTv5 else []):
            try:
                case(world, base + "/" + case.__name__)
            except Exception as error:
                sys.exit("FAILED: %s over %s: %s" % (case.__name__, base, error))
        print("%s over %s%s: passed" % (version, transport, " with TLS" if is_tls else ""))
print("%d checks: %d passed, 0 failed" % (checks, checks))
