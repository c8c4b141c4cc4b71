// Validates the instances of a file of lines {"schema", "tests": [{"valid", "data"}]} with Ajv.
// Prints {"instances": N, "valid": N, "differ": [[line, instance], ..]}: where it does not say what the line says.
import { readFileSync } from "node:fs";
import Ajv from "ajv/dist/2020.js";

const ajv = new Ajv({ strict: false, validateFormats: false, logger: false });
const counts = { instances: 0, valid: 0, differ: [] };
readFileSync(process.argv[2], "utf8").split("\n").forEach((text, line) => {
  if (text === "") return;
  const { schema, tests } = JSON.parse(text);
  const validate = ajv.compile(schema);
  tests.forEach(({ valid, data }, i) => {
    ++counts.instances;
    counts.valid += valid ? 1 : 0;
    if (validate(data) !== valid) counts.differ.push([line + 1, i]);
  });
});
console.log(JSON.stringify(counts));
