// Standard input: a JSON list of Istio's and the Prometheus operator's resources. Each against the published schema of its kind, which is
// found in node_modules of the directory that is named.
import { readFileSync } from "node:fs";

let faults = 0;
for (const document of JSON.parse(readFileSync(0))) {
  const [group, version] = document.apiVersion.split("/");
  const models = group.endsWith("istio.io") ? "istio" : "prometheus-operator";
  const kinds = await import(`${process.argv[2]}/node_modules/@kubernetes-models/${models}/${group}/${version}/index.js`);
  const name = `${document.kind} ${document.metadata.name}`;
  try {
    new kinds[document.kind](document).validate();
    console.log(name, "is valid");
  } catch (error) {
    console.log(name, error.message);
    faults += 1;
  }
}
process.exit(faults > 0 ? 1 : 0);
