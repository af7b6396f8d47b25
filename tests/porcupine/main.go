// Judges a history of a key-value store: JSON lines as `cenote lab history` leaves them.
//
// Each key for itself is a register with a number, a counter and a lock: linearizability of the
// whole is that of each key. Porcupine searches for an order of the operations that keeps to their
// times and to the model below. Ends with 0 if there is one for every key, with 1 and the keys that
// have none, with 2 if the search took too long or the history cannot be read.
//
//	porcupine [-seconds N] [-html FILE] HISTORY
//
// An operation without an answer may have taken effect at any time after it was sent, or never: it
// lasts to the end of time, where nobody sees it any more.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// operation is a line of the history; the names are those of the file.
type operation struct {
	Client   int     `json:"client"`
	Key      string  `json:"key"`
	Ask      string  `json:"ask"`
	Argument *uint64 `json:"argument"`
	Unique   *uint64 `json:"unique"`
	Answer   string  `json:"answer"`
	Value    *uint64 `json:"value"`
	CallNs   int64   `json:"call_ns"`
	ReturnNs *int64  `json:"return_ns"`
}

// item is the state of one key. The number by which CAS knows it is not known before a GETS told it.
type item struct {
	present     bool
	value       uint64
	uniqueKnown bool
	unique      uint64
}

var model = porcupine.Model{
	Init: func() interface{} { return item{} },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		legal, next := step(state.(item), input.(operation))
		return legal, next
	},
	DescribeOperation: func(input, _ interface{}) string {
		one := input.(operation)
		text := one.Ask
		for _, number := range []*uint64{one.Argument, one.Unique} {
			if number != nil {
				text += fmt.Sprintf(" %d", *number)
			}
		}
		text += " -> " + one.Answer
		if one.Value != nil {
			text += fmt.Sprintf(" %d", *one.Value)
		}
		return text
	},
	DescribeState: func(state interface{}) string {
		now := state.(item)
		if !now.present {
			return "absent"
		}
		return fmt.Sprintf("%d", now.value)
	},
}

// step applies an operation. Of one without an answer every effect is legal.
func step(now item, one operation) (bool, item) {
	unknown := one.Answer == "unknown"
	stored := item{present: true, value: number(one.Argument)}
	switch one.Ask {
	case "get", "gets":
		if !now.present {
			return one.Answer == "miss", now
		}
		if one.Answer != "value" || number(one.Value) != now.value {
			return false, now
		}
		if one.Ask == "gets" {
			if now.uniqueKnown && now.unique != number(one.Unique) {
				return false, now
			}
			now.uniqueKnown, now.unique = true, number(one.Unique)
		}
		return true, now
	case "set":
		return unknown || one.Answer == "stored", stored
	case "add":
		if now.present {
			return unknown || one.Answer == "not_stored", now
		}
		return unknown || one.Answer == "stored", stored
	case "cas":
		if !now.present {
			return unknown || one.Answer == "not_found", now
		}
		// Who has the number has had it from a GETS: an item whose number nobody was told is another.
		if now.uniqueKnown && now.unique == number(one.Unique) {
			return unknown || one.Answer == "stored", stored
		}
		return unknown || one.Answer == "exists", now
	case "incr":
		if !now.present {
			return unknown || one.Answer == "not_found", now
		}
		sum := now.value + number(one.Argument)
		return unknown || (one.Answer == "value" && number(one.Value) == sum), item{present: true, value: sum}
	case "delete":
		if !now.present {
			return unknown || one.Answer == "not_found", now
		}
		return unknown || one.Answer == "deleted", item{}
	}
	return false, now
}

func number(of *uint64) uint64 {
	if of == nil {
		return 0
	}
	return *of
}

func main() {
	seconds := flag.Int("seconds", 20, "how long to search, for each key")
	html := flag.String("html", "", "draw the first key that has no order to this file")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	keys, err := read(flag.Arg(0))
	if err != nil {
		fmt.Println("cannot judge:", err)
		os.Exit(2)
	}
	os.Exit(judge(keys, time.Duration(*seconds)*time.Second, *html))
}

func read(path string) (map[string][]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	keys := map[string][]porcupine.Operation{}
	lines := bufio.NewScanner(file)
	for at := 1; lines.Scan(); at++ {
		var one operation
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, fmt.Errorf("line %d: %w", at, err)
		}
		end := int64(math.MaxInt64)
		if one.ReturnNs != nil {
			end = *one.ReturnNs
		}
		keys[one.Key] = append(keys[one.Key], porcupine.Operation{
			ClientId: one.Client,
			Input:    one,
			Call:     one.CallNs,
			Return:   end,
		})
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no operations", path)
	}
	return keys, nil
}

func judge(keys map[string][]porcupine.Operation, limit time.Duration, html string) int {
	names := make([]string, 0, len(keys))
	for name := range keys {
		names = append(names, name)
	}
	sort.Strings(names)
	count, open, code := 0, 0, 0
	for _, name := range names {
		operations := keys[name]
		count += len(operations)
		for _, one := range operations {
			if one.Return == math.MaxInt64 {
				open++
			}
		}
		result, info := porcupine.CheckOperationsVerbose(model, operations, limit)
		switch result {
		case porcupine.Illegal:
			fmt.Printf("not linearizable: key %s, %d operations\n", name, len(operations))
			if html != "" && code != 1 {
				if err := porcupine.VisualizePath(model, info, html); err != nil {
					fmt.Println("cannot draw:", err)
				}
			}
			code = 1
		case porcupine.Unknown:
			fmt.Printf("not decided in %s: key %s, %d operations\n", limit, name, len(operations))
			if code == 0 {
				code = 2
			}
		}
	}
	if code == 0 {
		fmt.Printf("linearizable: %d operations on %d keys, %d of them without an answer\n", count, len(keys), open)
	}
	return code
}
