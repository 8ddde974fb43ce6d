"""What several verbs share: options, output, documents and tables of the node, its picture."""
