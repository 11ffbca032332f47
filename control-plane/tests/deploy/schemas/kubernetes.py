"""Standard input: a JSON list of Kubernetes' own resources. Each against the published schema of its kind; unknown fields are faults."""

import json
import sys

import kubernetes_validate

faults = 0
for document in json.load(sys.stdin):
    name = f"{document['kind']} {document['metadata']['name']}"
    try:
        print(name, "is valid by the schemas of", kubernetes_validate.validate(document, sys.argv[1], strict=True))
    except kubernetes_validate.ValidationError as error:
        print(name, list(error.path), error.message)
        faults += 1
sys.exit(faults > 0)
