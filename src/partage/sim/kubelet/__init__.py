"""An embedded kubelet with real gRPC sockets, for stories and tests."""
