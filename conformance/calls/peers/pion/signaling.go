package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	"github.com/pion/webrtc/v4"
)

// request sends a body with headers (name, value, ..) and decodes a JSON answer.
func request(method, url string, body []byte, answer any, headers ...string) ([]byte, error) {
	request, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, url, response.Status, text)
	}
	if answer != nil {
		return text, json.Unmarshal(text, answer)
	}
	return text, nil
}

type iceServer struct {
	URLs       []string `json:"urls"`
	Username   string   `json:"username"`
	Credential string   `json:"credential"`
}

type roomSignal struct {
	To          string                     `json:"to,omitempty"`
	From        string                     `json:"from,omitempty"`
	Description *webrtc.SessionDescription `json:"description,omitempty"`
	Candidate   *webrtc.ICECandidateInit   `json:"candidate,omitempty"`
	Link        string                     `json:"link,omitempty"`
	Streams     map[string]string          `json:"streams"`
}

// joinRoom joins by the rooms API (docs/reference/protocol.md, "Rooms"). The other participant opens the link.
func joinRoom(p *peer, url, room, topology string) error {
	var joined struct {
		Participant string            `json:"participant"`
		Secret      string            `json:"secret"`
		Positions   map[string]string `json:"positions"`
		ICEServers  []iceServer       `json:"ice_servers"`
	}
	body, _ := json.Marshal(map[string]string{"name": "pion", "topology": topology})
	participants := fmt.Sprintf("%s/v1/rooms/%s/participants", url, room)
	if _, err := request("POST", participants, body, &joined); err != nil {
		return err
	}
	if len(joined.ICEServers) == 0 {
		var relay struct {
			ICEServers []iceServer `json:"ice_servers"`
		}
		if _, err := request("POST", url+"/v1/turn", nil, &relay); err != nil {
			return err
		}
		joined.ICEServers = relay.ICEServers
	}
	var configuration webrtc.Configuration
	for _, server := range joined.ICEServers {
		one := webrtc.ICEServer{URLs: server.URLs, Username: server.Username, Credential: server.Credential}
		configuration.ICEServers = append(configuration.ICEServers, one)
	}
	if topology == "relay" {
		configuration.ICETransportPolicy = webrtc.ICETransportPolicyRelay
	}
	pc, target, err := p.connect(configuration)
	if err != nil {
		return err
	}
	if err := p.send(pc, target); err != nil {
		return err
	}
	// The data channel that the project's client has on every link.
	negotiated, id := true, uint16(0)
	channel := &webrtc.DataChannelInit{Negotiated: &negotiated, ID: &id}
	if _, err := pc.CreateDataChannel("room", channel); err != nil {
		return err
	}
	own := participants + "/" + joined.Participant
	post := func(path string, body any) {
		data, _ := json.Marshal(body)
		if _, err := request("POST", own+path, data, nil, "Millrace-Participant", joined.Secret); err != nil {
			log.Print(err)
		}
	}
	go func() {
		for ; ; time.Sleep(reportEvery) {
			post("/reports", map[string]string{})
		}
	}()
	inbox := fmt.Sprintf("rooms/%s/inbox/%s", room, joined.Participant)
	get, err := http.NewRequest("GET", fmt.Sprintf("%s/v1/channels/%s?since=%s", url, inbox, joined.Positions[inbox]), nil)
	if err != nil {
		return err
	}
	get.Header.Set("Accept", "application/x-ndjson")
	stream, err := http.DefaultClient.Do(get)
	if err != nil {
		return err
	}
	var pending []webrtc.ICECandidateInit
	handle := func(signal roomSignal) error {
		switch {
		case signal.Candidate != nil && pc.RemoteDescription() == nil:
			pending = append(pending, *signal.Candidate)
		case signal.Candidate != nil:
			return pc.AddICECandidate(*signal.Candidate)
		case signal.Description != nil && signal.Description.Type == webrtc.SDPTypeOffer:
			if err := pc.SetRemoteDescription(*signal.Description); err != nil {
				return err
			}
			for _, candidate := range pending {
				if err := pc.AddICECandidate(candidate); err != nil {
					return err
				}
			}
			pending = nil
			answer, err := pc.CreateAnswer(nil)
			if err != nil {
				return err
			}
			gathered := webrtc.GatheringCompletePromise(pc)
			if err := pc.SetLocalDescription(answer); err != nil {
				return err
			}
			<-gathered
			reply := roomSignal{To: signal.From, Description: pc.LocalDescription(), Link: signal.Link, Streams: map[string]string{}}
			post("/signals", reply)
		}
		return nil
	}
	go func() {
		lines := bufio.NewScanner(stream.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var message struct {
				Data roomSignal `json:"data"`
			}
			if err := json.Unmarshal(lines.Bytes(), &message); err != nil {
				continue
			}
			if err := handle(message.Data); err != nil {
				log.Print(err)
			}
		}
	}()
	return nil
}

// publishAndPlay publishes by WHIP and plays by WHEP (docs/reference/rooms.md).
func publishAndPlay(p *peer, url, room string) error {
	publisher, target, err := p.connect(webrtc.Configuration{})
	if err != nil {
		return err
	}
	if err := p.send(publisher, target); err != nil {
		return err
	}
	media := fmt.Sprintf("%s/v1/rooms/%s/", url, room)
	if err := offer(publisher, media+"whip?name=pion"); err != nil {
		return err
	}
	player, _, err := p.connect(webrtc.Configuration{})
	if err != nil {
		return err
	}
	recvonly := webrtc.RTPTransceiverInit{Direction: webrtc.RTPTransceiverDirectionRecvonly}
	if _, err := player.AddTransceiverFromKind(webrtc.RTPCodecTypeVideo, recvonly); err != nil {
		return err
	}
	return offer(player, media+"whep")
}

func offer(pc *webrtc.PeerConnection, url string) error {
	description, err := pc.CreateOffer(nil)
	if err != nil {
		return err
	}
	gathered := webrtc.GatheringCompletePromise(pc)
	if err := pc.SetLocalDescription(description); err != nil {
		return err
	}
	<-gathered
	answer, err := request("POST", url, []byte(pc.LocalDescription().SDP), nil, "Content-Type", "application/sdp")
	if err != nil {
		return err
	}
	return pc.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: string(answer)})
}
