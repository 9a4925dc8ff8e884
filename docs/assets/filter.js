// A field above a table of class "filter" that shows only the rows with what is typed.
"use strict";

for (const place of document.querySelectorAll(".filter")) {
    const rows = [...place.querySelectorAll("tbody tr")];
    const input = document.createElement("input");
    Object.assign(input, { type: "search", placeholder: "Filter the table", ariaLabel: "Filter the table" });
    input.addEventListener("input", () => {
        const words = input.value.toLowerCase().split(/\s+/);
        for (const row of rows) {
            const text = row.textContent.toLowerCase();
            row.hidden = !words.every((word) => text.includes(word));
        }
    });
    place.prepend(input);
}
