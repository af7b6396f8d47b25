// Writes values by gomemcache, and reads back what was acknowledged.
//
//	gomemcache SECONDS|- ADDRESS...
//
// With "-" it writes until its standard input ends.
//
// Nodes may be killed meanwhile. gomemcache leaves no dead server out by itself; since any address
// answers for all keys, each worker asks one of them, and after an error the next. A write that
// failed may have taken effect or not, now or later: its key is written no more. Prints one line of
// JSON; ends with 1 when an acknowledged value is gone or another is in its place.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

const (
	workerCount = 4
	// Written again and again, by each worker.
	keyCount = 300
	// Written once, so that what a store forgets is not made good by the next write.
	onceCount = 2000
	// How long one value is asked for.
	readBackTime = time.Minute
)

// store is a client of each address, of which one is asked.
type store struct {
	clients []*memcache.Client
	now     int
}

func open(addresses []string, first int) *store {
	s := &store{now: first % len(addresses)}
	for _, address := range addresses {
		client := memcache.New(address)
		client.Timeout = 5 * time.Second
		s.clients = append(s.clients, client)
	}
	return s
}

func (s *store) client() *memcache.Client { return s.clients[s.now] }

func (s *store) turn() { s.now = (s.now + 1) % len(s.clients) }

type worker struct {
	Acknowledged, Failed, Wrong int
	latest, retired             map[string][]byte
	complaint                   string
}

func valueOf(key string, version int) []byte {
	value := []byte(fmt.Sprintf("%s.%d.", key, version))
	return append(value, bytes.Repeat([]byte("v"), (version*37+len(key))%4000)...)
}

func (w *worker) run(s *store, number int, stop *atomic.Bool) {
	for step := 0; !stop.Load(); step++ {
		w.write(s, fmt.Sprintf("go-%d-%d", number, step%keyCount), step)
		if step < onceCount {
			w.write(s, fmt.Sprintf("go-%d-once-%d", number, step), step)
		}
	}
}

func (w *worker) write(s *store, key string, version int) {
	if _, gone := w.retired[key]; gone {
		return
	}
	value := valueOf(key, version)
	if err := s.client().Set(&memcache.Item{Key: key, Value: value}); err != nil {
		w.Failed++
		w.retired[key] = value
		s.turn()
		return
	}
	w.Acknowledged++
	w.latest[key] = value
	found, err := s.client().Get(key)
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		w.Wrong++
		w.complaint = key + " is gone at once"
	case err != nil:
		w.Failed++
		s.turn()
	case !bytes.Equal(found.Value, value):
		w.Wrong++
		w.complaint = fmt.Sprintf("%s: %.60q for %.60q", key, found.Value, value)
	}
}

// readBack counts values that are gone, and others in their place.
func readBack(s *store, workers []*worker) (lost, wrong int) {
	for _, w := range workers {
		for key, value := range w.latest {
			end := time.Now().Add(readBackTime)
			found, err := s.client().Get(key)
			for err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
				if time.Now().After(end) {
					fail("cannot read %s back: %v", key, err)
				}
				s.turn()
				found, err = s.client().Get(key)
			}
			other, retired := w.retired[key]
			if err != nil {
				// Nor can a write of unknown fate have removed it.
				lost++
			} else if !bytes.Equal(found.Value, value) && !(retired && bytes.Equal(found.Value, other)) {
				wrong++
			}
		}
	}
	return lost, wrong
}

// checkAPI asks for what memcached's protocol says of each operation.
func checkAPI(c *memcache.Client) {
	put := func(text string) *memcache.Item { return &memcache.Item{Key: "api", Value: []byte(text)} }
	if err := c.Delete("api"); err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
		fail("delete: %v", err)
	}
	_, err := c.Get("api")
	expect(errors.Is(err, memcache.ErrCacheMiss), "get of nothing")
	expect(c.Add(put("2")) == nil, "add")
	expect(errors.Is(c.Add(put("3")), memcache.ErrNotStored), "add of what is there")
	expect(c.Append(put("0")) == nil, "append")
	expect(c.Prepend(put("1")) == nil, "prepend")
	sum, err := c.Increment("api", 5)
	expect(err == nil && sum == 125, "incr")
	sum, err = c.Decrement("api", 200)
	expect(err == nil && sum == 0, "decr stops at 0")
	expect(c.Replace(put("x")) == nil, "replace")
	held, err := c.Get("api")
	expect(err == nil && string(held.Value) == "x", "get")
	held.Value = []byte("y")
	expect(c.CompareAndSwap(held) == nil, "cas")
	expect(errors.Is(c.CompareAndSwap(held), memcache.ErrCASConflict), "cas of another")
	expect(c.Touch("api", 100) == nil, "touch")
	many, err := c.GetMulti([]string{"api", "api3"})
	expect(err == nil && len(many) == 1, "get of many")
	expect(c.Delete("api") == nil, "delete")
}

func expect(holds bool, what string) {
	if !holds {
		fail("wrong answer: %s", what)
	}
}

func fail(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", arguments...)
	os.Exit(1)
}

func main() {
	if len(os.Args) < 3 {
		fail("usage: gomemcache SECONDS|- ADDRESS...")
	}
	wait := func() { io.Copy(io.Discard, os.Stdin) }
	if os.Args[1] != "-" {
		seconds, err := strconv.ParseFloat(os.Args[1], 64)
		if err != nil {
			fail("seconds: %v", err)
		}
		wait = func() { time.Sleep(time.Duration(seconds * float64(time.Second))) }
	}
	addresses := os.Args[2:]
	checkAPI(open(addresses, 0).client())
	var stop atomic.Bool
	var group sync.WaitGroup
	var workers []*worker
	for number := 0; number < workerCount; number++ {
		w := &worker{latest: map[string][]byte{}, retired: map[string][]byte{}}
		workers = append(workers, w)
		group.Add(1)
		go func(number int) {
			defer group.Done()
			w.run(open(addresses, number), number, &stop)
		}(number)
	}
	wait()
	stop.Store(true)
	group.Wait()
	sum := worker{}
	complaints := []string{}
	for _, w := range workers {
		sum.Acknowledged += w.Acknowledged
		sum.Failed += w.Failed
		sum.Wrong += w.Wrong
		if w.complaint != "" {
			complaints = append(complaints, w.complaint)
		}
	}
	lost, wrong := readBack(open(addresses, 0), workers)
	sum.Wrong += wrong
	line, err := json.Marshal(map[string]any{
		"client": "gomemcache", "acknowledged": sum.Acknowledged, "failed": sum.Failed,
		"lost": lost, "wrong": sum.Wrong, "complaints": complaints,
	})
	if err != nil {
		fail("print: %v", err)
	}
	fmt.Println(string(line))
	if lost > 0 || sum.Wrong > 0 || sum.Acknowledged == 0 {
		os.Exit(1)
	}
}
