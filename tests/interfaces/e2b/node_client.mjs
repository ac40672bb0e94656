// Uses a sandbox by the E2B SDK of npm, and prints what came of each step as one JSON object.
import { Sandbox } from '@e2b/code-interpreter'

const found = {}
const failure = async (work) => work().then(() => 'none', (error) => error.constructor.name)
const sandbox = await Sandbox.create({ timeoutMs: 100_000, metadata: { from: 'node' } })
try {
  found.code = (await sandbox.runCode('x = 20\nx + 1')).text
  found.error = (await sandbox.runCode('1 / 0')).error.name
  const ran = await sandbox.commands.run('echo out; echo err >&2')
  found.command = [ran.stdout, ran.stderr, ran.exitCode]
  found.exit = await failure(() => sandbox.commands.run('exit 3'))
  await sandbox.files.write('a.txt', 'hello')
  found.read = await sandbox.files.read('a.txt')
  found.missing = await failure(() => sandbox.files.read('missing'))
  found.paths = (await sandbox.files.list('.')).map((entry) => entry.path)
  await sandbox.files.makeDir('watched')
  let change
  const changed = new Promise((resolve) => { change = resolve })
  await sandbox.files.watchDir('watched', change)
  await sandbox.files.write('watched/b', '1')
  found.changed = (await changed).name
  const cat = await sandbox.commands.run('read line; echo $line', { background: true, stdin: true })
  await sandbox.commands.sendStdin(cat.pid, 'typed\n')
  found.stdin = (await cat.wait()).stdout
  let shown = ''
  const onData = (data) => { shown += new TextDecoder().decode(data) }
  const terminal = await sandbox.pty.create({ cols: 90, rows: 30, onData })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
  await terminal.wait()
  found.terminal = shown.includes('30 90')
  found.contexts = (await sandbox.listCodeContexts()).length
  const listed = await Sandbox.list({ query: { metadata: { from: 'node' } } }).nextItems()
  found.listed = listed.length
} finally {
  found.killed = await sandbox.kill()
}
found.isRunning = await sandbox.isRunning()
found.wrongKey = await failure(() => Sandbox.create({ apiKey: 'e2b_wrong' }))
console.log(JSON.stringify(found))
