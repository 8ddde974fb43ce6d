"""The kubelet: device plugins v1beta1, registration, PodResources v1, over unix sockets."""
