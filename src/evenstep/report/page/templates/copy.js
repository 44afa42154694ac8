// Copy the lines of a script to the clipboard, and save the file that they read from the page itself.
for (const button of document.querySelectorAll("[data-copies]")) {
  const code = document.getElementById(button.dataset.copies);
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected: copy it"; // some browsers close the clipboard to pages opened as files
    }
  });
}

for (const button of document.querySelectorAll("[data-saves]")) {
  button.addEventListener("click", () => {
    const held = document.getElementById(button.dataset.saves).textContent;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([held], { type: "application/json" }));
    link.download = button.dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  });
}
