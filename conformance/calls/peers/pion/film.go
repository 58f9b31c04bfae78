package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pion/webrtc/v4"
	"github.com/pion/webrtc/v4/pkg/media"
	"github.com/pion/webrtc/v4/pkg/media/ivfreader"
)

const fps = 15

// film is one recording of the same video: frame N shows the same picture at every rate.
type film struct {
	frames  [][]byte
	bitRate int
}

func (f film) isKeyframe(number int) bool { return f.frames[number][0]&1 == 0 }

// readFilms returns the recordings of a folder, the lowest rate first.
func readFilms(folder string) ([]film, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.ivf"))
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("no film in %s (%v): peers/film.py writes films", folder, err)
	}
	films := make([]film, 0, len(paths))
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		reader, _, err := ivfreader.NewWith(file)
		if err != nil {
			return nil, err
		}
		var one film
		for {
			frame, _, err := reader.ParseNextFrame()
			if err == io.EOF {
				break
			} else if err != nil {
				return nil, err
			}
			one.frames = append(one.frames, frame)
			one.bitRate += len(frame) * 8
		}
		one.bitRate = one.bitRate * fps / len(one.frames)
		films = append(films, one)
	}
	slices.SortFunc(films, func(a, b film) int { return a.bitRate - b.bitRate })
	return films, nil
}

// player sends films. At each keyframe it selects the best film that fits into the target rate.
type player struct {
	films []film
	// target returns the rate that the congestion control allows, in bit/s.
	target          func() int
	wantsKeyframe   atomic.Bool
	number, current int
}

func (p *player) play(track *webrtc.TrackLocalStaticSample) {
	for range time.Tick(time.Second / fps) {
		if p.wantsKeyframe.Swap(false) {
			for !p.films[p.current].isKeyframe(p.number) {
				p.advance()
			}
		}
		if p.films[p.current].isKeyframe(p.number) {
			p.current = 0
			for i, film := range p.films {
				if film.bitRate <= p.target() && film.isKeyframe(p.number) {
					p.current = i
				}
			}
		}
		// A connection that is closed or not open yet takes no samples.
		_ = track.WriteSample(media.Sample{Data: p.films[p.current].frames[p.number], Duration: time.Second / fps})
		p.advance()
	}
}

func (p *player) advance() { p.number = (p.number + 1) % len(p.films[p.current].frames) }
