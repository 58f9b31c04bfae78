// uWebSockets itself, doing what Millrace's bare WebSocket does: the path is the topic, a message goes to all its subscribers.
// Build: see mod.rs beside it.
#include "App.h"

#include <iostream>
#include <string>

struct PerSocket {
    std::string topic;
    bool subscribe;
};

int main() {
    uWS::App app;
    app.ws<PerSocket>("/*", {
        .compression = uWS::DISABLED,
        .maxPayloadLength = 1 << 20,
        .idleTimeout = 120,
        .maxBackpressure = 16 << 20,
        .sendPingsAutomatically = true,
        .upgrade = [](auto *res, auto *req, auto *context) {
            PerSocket data{std::string(req->getUrl()), req->getQuery("subscribe") != "no"};
            res->template upgrade<PerSocket>(std::move(data), req->getHeader("sec-websocket-key"),
                req->getHeader("sec-websocket-protocol"), req->getHeader("sec-websocket-extensions"), context);
        },
        .open = [](auto *ws) {
            if (ws->getUserData()->subscribe) ws->subscribe(ws->getUserData()->topic);
        },
        .message = [&app](auto *ws, std::string_view message, uWS::OpCode opCode) {
            app.publish(ws->getUserData()->topic, message, opCode);
        },
    });
    app.listen("127.0.0.1", 0, [](auto *socket) {
        if (!socket) return;
        int port = us_socket_local_port(0, (struct us_socket_t *) socket);
        std::cout << "listening on http://127.0.0.1:" << port << std::endl;
    });
    app.run();
}
