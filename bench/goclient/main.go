// A gRPC client as the kubelet's, driven by lines of JSON: it calls what it is told with bytes that it is
// given, and says how long each call took. It knows no message, so that nothing has to be generated for it.
//
//	goclient                         reads requests from standard input, one a line, until it ends
//	goclient serve SOCKET ANSWERS    answers every call with canned bytes: what gRPC itself costs in Go
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// A request: the calls, in their order, so many times, after so many that are not timed.
type request struct {
	Socket string `json:"socket"`
	Calls  []call `json:"calls"`
	Repeat int    `json:"repeat"`
	Warm   int    `json:"warm"`
}

// A call of one method; the body is a message on the wire (base64 in JSON).
type call struct {
	Method string `json:"method"`
	Body   []byte `json:"body"`
}

// An answer: nanoseconds of every repetition, all its calls together; the bodies of the last one.
type answer struct {
	Nanoseconds []int64  `json:"nanoseconds"`
	Bodies      [][]byte `json:"bodies"`
	Error       string   `json:"error"`
}

// raw passes bytes through, under protobuf's name.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(value any) ([]byte, error) { return *value.(*[]byte), nil }

func (raw) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// connections that are open, by socket: a kubelet keeps one per plugin.
type connections map[string]*grpc.ClientConn

func (open connections) to(socket string) (*grpc.ClientConn, error) {
	if connection, ok := open[socket]; ok {
		return connection, nil
	}
	connection, err := grpc.NewClient(
		"passthrough:///"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}),
	)
	if err == nil {
		open[socket] = connection
	}
	return connection, err
}

// A broken connection is given up, so that the next request makes a new one instead of waiting with back-off.
func (open connections) forget(socket string) {
	if connection, ok := open[socket]; ok {
		connection.Close()
		delete(open, socket)
	}
}

func (open connections) serve(asked request) answer {
	connection, err := open.to(asked.Socket)
	if err != nil {
		return answer{Error: err.Error()}
	}
	said := answer{Nanoseconds: make([]int64, 0, asked.Repeat)}
	for turn := 0; turn < asked.Warm+asked.Repeat; turn++ {
		bodies, took, err := once(connection, asked.Calls)
		if err != nil {
			open.forget(asked.Socket)
			said.Error = err.Error()
			return said
		}
		if turn >= asked.Warm {
			said.Nanoseconds = append(said.Nanoseconds, took.Nanoseconds())
		}
		said.Bodies = bodies
	}
	return said
}

func once(connection *grpc.ClientConn, calls []call) ([][]byte, time.Duration, error) {
	ctx := context.Background() // no deadline: the kubelet sets none on these calls
	bodies := make([][]byte, len(calls))
	began := time.Now()
	for i := range calls {
		if err := connection.Invoke(ctx, calls[i].Method, &calls[i].Body, &bodies[i]); err != nil {
			return nil, 0, err
		}
	}
	return bodies, time.Since(began), nil
}

func converse() error {
	open := connections{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return err
		}
		if err := out.Encode(open.serve(asked)); err != nil {
			return err
		}
	}
	return lines.Err()
}

// echo serves every method; its answers are a file of {"/method": "base64"}.
func echo(socket, answers string) error {
	text, err := os.ReadFile(answers)
	if err != nil {
		return err
	}
	var canned map[string][]byte
	if err := json.Unmarshal(text, &canned); err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(
		func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			var asked []byte
			if err := stream.RecvMsg(&asked); err != nil {
				return err
			}
			body := canned[method]
			return stream.SendMsg(&body)
		}))
	return server.Serve(listener)
}

func main() {
	var err error
	if len(os.Args) == 4 && os.Args[1] == "serve" {
		err = echo(os.Args[2], os.Args[3])
	} else {
		err = converse()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
