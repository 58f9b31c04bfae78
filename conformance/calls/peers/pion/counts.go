package main

import (
	"fmt"
	"sync"

	"github.com/pion/interceptor"
	"github.com/pion/rtp"
)

// Traffic counts RTP packets with their headers, before encryption.
type Traffic struct {
	Bytes   int `json:"bytes"`
	Packets int `json:"packets"`
}

// Counts is what the peer reports each second.
type Counts struct {
	mutex        sync.Mutex
	Sent         Traffic        `json:"sent"`
	Received     Traffic        `json:"received"`
	RTCPSent     map[string]int `json:"rtcp_sent"`
	RTCPReceived map[string]int `json:"rtcp_received"`
	Frames       int            `json:"frames"`
	Changes      int            `json:"changes"`
	// Keyframe is called for each request of a keyframe.
	keyframe func()
}

func newCounts() *Counts {
	return &Counts{RTCPSent: map[string]int{}, RTCPReceived: map[string]int{}, keyframe: func() {}}
}

func (c *Counts) update(change func()) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	change()
}

func (c *Counts) rtp(traffic *Traffic, bytes int) {
	c.update(func() {
		traffic.Bytes += bytes
		traffic.Packets++
	})
}

// kindOf returns the name of an RTCP packet as in ../../rtcp.mjs.
func kindOf(packetType, format byte, isREMB bool) string {
	switch {
	case packetType == 205 && format == 1:
		return "NACK"
	case packetType == 205 && format == 15:
		return "TWCC"
	case packetType == 205 && format == 11:
		return "CCFB"
	case packetType == 206 && format == 1:
		return "PLI"
	case packetType == 206 && format == 4:
		return "FIR"
	case packetType == 206 && format == 15 && isREMB:
		return "REMB"
	}
	switch packetType {
	case 200:
		return "SR"
	case 201:
		return "RR"
	case 202:
		return "SDES"
	case 203:
		return "BYE"
	case 207:
		return "XR"
	}
	return fmt.Sprintf("%d/%d", packetType, format)
}

// rtcp counts the packets of one compound packet.
func (c *Counts) rtcp(kinds map[string]int, data []byte) {
	for len(data) >= 4 {
		kind := kindOf(data[1], data[0]&31, len(data) >= 16 && string(data[12:16]) == "REMB")
		c.update(func() { kinds[kind]++ })
		if kind == "PLI" || kind == "FIR" {
			c.keyframe()
		}
		length := 4 * (int(data[2])<<8 + int(data[3]) + 1)
		if length > len(data) {
			return
		}
		data = data[length:]
	}
}

// counter is the interceptor next to the encryption: it sees the packets of all other interceptors.
type counter struct {
	interceptor.NoOp
	counts *Counts
}

// NewInterceptor implements interceptor.Factory.
func (c *counter) NewInterceptor(string) (interceptor.Interceptor, error) { return c, nil }

func (c *counter) BindRTCPReader(reader interceptor.RTCPReader) interceptor.RTCPReader {
	read := func(buffer []byte, attributes interceptor.Attributes) (int, interceptor.Attributes, error) {
		n, attributes, err := reader.Read(buffer, attributes)
		if err == nil {
			c.counts.rtcp(c.counts.RTCPReceived, buffer[:n])
		}
		return n, attributes, err
	}
	return interceptor.RTCPReaderFunc(read)
}

func (c *counter) BindRTCPWriter(writer interceptor.RTCPWriter) interceptor.RTCPWriter {
	write := func(packets []rtcpPacket, attributes interceptor.Attributes) (int, error) {
		for _, packet := range packets {
			if data, err := packet.Marshal(); err == nil {
				c.counts.rtcp(c.counts.RTCPSent, data)
			}
		}
		return writer.Write(packets, attributes)
	}
	return interceptor.RTCPWriterFunc(write)
}

func (c *counter) BindLocalStream(_ *interceptor.StreamInfo, writer interceptor.RTPWriter) interceptor.RTPWriter {
	write := func(header *rtp.Header, payload []byte, attributes interceptor.Attributes) (int, error) {
		c.counts.rtp(&c.counts.Sent, header.MarshalSize()+len(payload))
		return writer.Write(header, payload, attributes)
	}
	return interceptor.RTPWriterFunc(write)
}

func (c *counter) BindRemoteStream(_ *interceptor.StreamInfo, reader interceptor.RTPReader) interceptor.RTPReader {
	read := func(buffer []byte, attributes interceptor.Attributes) (int, interceptor.Attributes, error) {
		n, attributes, err := reader.Read(buffer, attributes)
		if err == nil {
			c.counts.rtp(&c.counts.Received, n)
		}
		return n, attributes, err
	}
	return interceptor.RTPReaderFunc(read)
}
