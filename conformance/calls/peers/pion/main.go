// Pion as a participant of a room: pion URL ROOM TOPOLOGY FILMS
//
// Prints one line of JSON per second (see ../../README.md) until SIGTERM. With the topology `switch` it publishes by
// WHIP and plays by WHEP; otherwise it answers the offer of the other participant.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/pion/interceptor"
	"github.com/pion/interceptor/pkg/cc"
	"github.com/pion/interceptor/pkg/gcc"
	"github.com/pion/rtcp"
	"github.com/pion/rtp/codecs"
	"github.com/pion/webrtc/v4"
	"github.com/pion/webrtc/v4/pkg/media/samplebuilder"
)

type rtcpPacket = rtcp.Packet

const (
	firstBitRate = 500_000
	minBitRate   = 50_000
	reportEvery  = 5 * time.Second
)

// peer makes connections whose packets are counted.
type peer struct {
	counts      *Counts
	films       []film
	connections []*webrtc.PeerConnection
}

func (p *peer) connect(configuration webrtc.Configuration) (*webrtc.PeerConnection, func() int, error) {
	var engine webrtc.MediaEngine
	if err := engine.RegisterDefaultCodecs(); err != nil {
		return nil, nil, err
	}
	var registry interceptor.Registry
	registry.Add(&counter{counts: p.counts})
	// The congestion control of Pion is an option: without it, Pion sends at any rate that the application chooses.
	target := func() int { return 1 << 30 }
	if os.Getenv("CONGESTION") != "none" {
		controller, err := cc.NewInterceptor(func() (cc.BandwidthEstimator, error) {
			return gcc.NewSendSideBWE(gcc.SendSideBWEInitialBitrate(firstBitRate), gcc.SendSideBWEMinBitrate(minBitRate))
		})
		if err != nil {
			return nil, nil, err
		}
		controller.OnNewPeerConnection(func(_ string, estimator cc.BandwidthEstimator) { target = estimator.GetTargetBitrate })
		registry.Add(controller)
		if err := webrtc.ConfigureTWCCHeaderExtensionSender(&engine, &registry); err != nil {
			return nil, nil, err
		}
	}
	if err := webrtc.RegisterDefaultInterceptors(&engine, &registry); err != nil {
		return nil, nil, err
	}
	api := webrtc.NewAPI(webrtc.WithMediaEngine(&engine), webrtc.WithInterceptorRegistry(&registry))
	pc, err := api.NewPeerConnection(configuration)
	if err != nil {
		return nil, nil, err
	}
	pc.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) { p.watch(pc, track) })
	p.connections = append(p.connections, pc)
	return pc, func() int { return target() }, nil
}

// send adds a track that plays the films.
func (p *peer) send(pc *webrtc.PeerConnection, target func() int) error {
	codec := webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeVP8}
	track, err := webrtc.NewTrackLocalStaticSample(codec, "video", "pion")
	if err != nil {
		return err
	}
	sender, err := pc.AddTrack(track)
	if err != nil {
		return err
	}
	player := &player{films: p.films, target: target}
	p.counts.keyframe = func() { player.wantsKeyframe.Store(true) }
	go player.play(track)
	go func() {
		// Interceptors process RTCP while the application reads.
		for buffer := make([]byte, 1500); ; {
			if _, _, err := sender.Read(buffer); err != nil {
				return
			}
		}
	}()
	return nil
}

// watch counts received frames without gaps, and those that differ from the frame before.
func (p *peer) watch(pc *webrtc.PeerConnection, track *webrtc.TrackRemote) {
	if track.Kind() != webrtc.RTPCodecTypeVideo {
		return
	}
	_ = pc.WriteRTCP([]rtcp.Packet{&rtcp.PictureLossIndication{MediaSSRC: uint32(track.SSRC())}})
	builder := samplebuilder.New(256, &codecs.VP8Packet{}, 90_000)
	var before []byte
	for {
		packet, _, err := track.ReadRTP()
		if err != nil {
			return
		}
		builder.Push(packet)
		for sample := builder.Pop(); sample != nil; sample = builder.Pop() {
			p.counts.update(func() {
				p.counts.Frames++
				if before != nil && !bytes.Equal(before, sample.Data) {
					p.counts.Changes++
				}
			})
			before = sample.Data
			if sample.PrevDroppedPackets > 0 {
				_ = pc.WriteRTCP([]rtcp.Packet{&rtcp.PictureLossIndication{MediaSSRC: uint32(track.SSRC())}})
			}
		}
	}
}

func (p *peer) state() (string, string) {
	state := "new"
	for i, pc := range p.connections {
		if each := pc.ConnectionState().String(); i == 0 || each != "connected" {
			state = each
		}
	}
	if len(p.connections) == 0 || p.connections[0].SCTP() == nil {
		return state, ""
	}
	pair, err := p.connections[0].SCTP().Transport().ICETransport().GetSelectedCandidatePair()
	if err != nil || pair == nil {
		return state, ""
	}
	return state, fmt.Sprintf("%s-%s", pair.Local.Typ, pair.Remote.Typ)
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/pion/webrtc/v4" {
			return strings.TrimPrefix(module.Version, "v")
		}
	}
	return ""
}

func main() {
	url, room, topology, folder := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	films, err := readFilms(folder)
	if err != nil {
		log.Fatal(err)
	}
	peer := &peer{counts: newCounts(), films: films}
	if topology == "switch" {
		err = publishAndPlay(peer, url, room)
	} else {
		err = joinRoom(peer, url, room, topology)
	}
	if err != nil {
		log.Fatal(err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	for second := time.Tick(time.Second); ; {
		select {
		case <-stop:
			for _, pc := range peer.connections {
				_ = pc.Close()
			}
			return
		case <-second:
			state, route := peer.state()
			peer.counts.update(func() {
				line := struct {
					At      int64  `json:"at"`
					Version string `json:"version"`
					State   string `json:"state"`
					Route   string `json:"route"`
					Codec   string `json:"codec"`
					*Counts
				}{time.Now().UnixMilli(), version(), state, route, "VP8", peer.counts}
				if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
					os.Exit(1)
				}
			})
		}
	}
}
