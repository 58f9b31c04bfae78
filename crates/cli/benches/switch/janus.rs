//! Janus with its video room plugin, from Debian, under the same load: `apt install janus`.
//!
//! Its publishers send their offer in a JSON request. Its viewers receive an offer for the video that they requested.
//! The answers to both arrive on a long poll.

use std::{
    fs,
    net::TcpStream,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use millrace_lab::{
    load::http::{exchange, get, post},
    targets::{Options, Ready, Server, free_address},
};

const PATIENCE: Duration = Duration::from_secs(20);

pub struct Janus {
    pub server: Server,
    http: TcpStream,
    events: TcpStream,
    session: String,
    /// Janus id of the publisher, by room. Viewers subscribe by this id.
    feeds: Vec<u64>,
}

impl Janus {
    /// Starts Janus on CPU 0 with `event_loops` threads for connections; 0 starts one thread per connection.
    pub fn start(rooms: usize, event_loops: usize) -> anyhow::Result<Self> {
        let address = free_address()?;
        let config = tempfile::tempdir()?;
        let folder = config.path().display();
        let libraries = "/usr/lib/x86_64-linux-gnu/janus";
        let main = format!(
            "general: {{ configs_folder = \"{folder}\"; plugins_folder = \"{libraries}/plugins\"; transports_folder = \"{libraries}/transports\";\n\
             debug_level = 0; log_to_stdout = false; session_timeout = 0; event_loops = {event_loops} }}\n\
             nat: {{ ice_enforce_list = \"lo\"; ice_lite = true }}\n\
             events: {{ broadcast = false }}\n"
        );
        let http = format!(
            "general: {{ http = true; port = {}; ip = \"127.0.0.1\"; base_path = \"/janus\" }}\n",
            address.port()
        );
        for (name, text) in [("janus", main), ("janus.transport.http", http), ("janus.plugin.videoroom", String::new())]
        {
            fs::write(config.path().join(format!("{name}.jcfg")), text)?;
        }
        let mut command = Command::new("janus");
        command.arg("--configs-folder").arg(config.path());
        let options = Options { cpus: vec![0], ..Options::default() };
        let server = Server::start(command, Ready::Accepts(address), config, &options)?;
        let connect = || TcpStream::connect(address).and_then(|http| http.set_nodelay(true).map(|()| http));
        let mut janus =
            Self { http: connect()?, events: connect()?, server, session: String::new(), feeds: Vec::new() };
        let session = janus.ask("/janus", json!({ "janus": "create" }))?;
        janus.session = format!("/janus/{}", session["data"]["id"]);
        let handle = janus.attach()?;
        for room in 0..rooms {
            let room = json!({ "request": "create", "room": room + 1, "publishers": 1, "bitrate": 10_000_000, "videocodec": "vp8" });
            janus.ask(&handle, json!({ "janus": "message", "body": room }))?;
        }
        Ok(janus)
    }

    /// Sends a publisher's offer and returns the answer.
    pub fn publish(&mut self, room: usize, sdp: &str) -> anyhow::Result<String> {
        let handle = self.attach()?;
        let join = json!({ "request": "joinandconfigure", "room": room + 1, "ptype": "publisher", "audio": false, "video": true });
        let event =
            self.talk(&handle, json!({ "janus": "message", "body": join, "jsep": { "type": "offer", "sdp": sdp } }))?;
        let feed = event["plugindata"]["data"]["id"].as_u64().with_context(|| format!("no publisher: {event}"))?;
        ensure!(self.feeds.len() == room, "one publisher for each room, in their order");
        self.feeds.push(feed);
        sdp_of(&event)
    }

    /// Joins a room as a viewer. Returns the handle to answer, and the offer.
    pub fn view(&mut self, room: usize) -> anyhow::Result<(String, String)> {
        let handle = self.attach()?;
        let feed = self.feeds[room];
        let join = json!({ "request": "join", "room": room + 1, "ptype": "subscriber", "streams": [{ "feed": feed }] });
        let event = self.talk(&handle, json!({ "janus": "message", "body": join }))?;
        Ok((handle, sdp_of(&event)?))
    }

    pub fn answer(&mut self, handle: &str, sdp: &str) -> anyhow::Result<()> {
        let start = json!({ "request": "start" });
        self.talk(handle, json!({ "janus": "message", "body": start, "jsep": { "type": "answer", "sdp": sdp } }))?;
        Ok(())
    }

    fn attach(&mut self) -> anyhow::Result<String> {
        let session = self.session.clone();
        let attached = self.ask(&session, json!({ "janus": "attach", "plugin": "janus.plugin.videoroom" }))?;
        Ok(format!("{session}/{}", attached["data"]["id"]))
    }

    fn ask(&mut self, path: &str, mut body: Value) -> anyhow::Result<Value> {
        body["transaction"] = json!("t");
        let mut request = Vec::new();
        post(path, "Content-Type: application/json\r\n", body.to_string().as_bytes(), &mut request);
        let answer: Value = exchange(&mut self.http, &request, |answer| Ok(serde_json::from_slice(&answer.body)?))?;
        ensure!(
            answer["janus"] != "error" && answer["plugindata"]["data"]["error"].is_null(),
            "{body} was answered {answer}"
        );
        Ok(answer)
    }

    /// Sends a request whose answer arrives as an event of this handle.
    fn talk(&mut self, handle: &str, body: Value) -> anyhow::Result<Value> {
        self.ask(handle, body)?;
        let (session, began) = (self.session.clone(), Instant::now());
        while began.elapsed() < PATIENCE {
            let mut request = Vec::new();
            get(&format!("{session}?maxev=1"), "", &mut request);
            let event: Value =
                exchange(&mut self.events, &request, |answer| Ok(serde_json::from_slice(&answer.body)?))?;
            let is_ours = handle.ends_with(&format!("/{}", event["sender"]));
            if is_ours && event["janus"] == "event" {
                ensure!(event["plugindata"]["data"]["error"].is_null(), "{event}");
                return Ok(event);
            }
        }
        anyhow::bail!("no event for {handle}")
    }
}

fn sdp_of(event: &Value) -> anyhow::Result<String> {
    Ok(event["jsep"]["sdp"].as_str().with_context(|| format!("no description in {event}"))?.to_owned())
}
