// Clients of npm against a running server: node server_clients.mjs URL CLIENT. Prints "ok NAME" for each check; exits
// with 1 and the reason at the first that fails. The replies come from SCRIPT in test_server_clients.py.
import assert from 'node:assert/strict';

const [url, client] = process.argv.slice(2);
const parameters = {
  type: 'object',
  properties: {command: {type: 'string'}, n: {type: 'integer'}},
  required: ['command'],
};
const twoCalls = [['bash', {command: 'ls "a"', n: 3}], ['bash', {command: 'pwd'}]];
const checks = {};

async function openai() {
  const {default: OpenAI} = await import('openai');
  const api = new OpenAI({baseURL: url + '/v1', apiKey: 'x'});
  const model = 'demo';
  const tools = [{type: 'function', function: {name: 'bash', description: 'Runs a command', parameters}}];
  const ask = text => ({model, tools, messages: [{role: 'user', content: text}]});
  checks['models'] = async () => assert.equal((await api.models.list()).data.length, 1);
  checks['chat'] = async () => {
    const r = await api.chat.completions.create(ask('plain'));
    assert.equal(r.choices[0].message.content, 'Hello, world.');
    assert.equal(r.choices[0].message.reasoning_content, 'Short thought.');
    assert.ok(r.usage.prompt_tokens_details.cached_tokens >= 0);
  };
  checks['stream helper'] = async () => {
    const stream = api.chat.completions.stream({...ask('plain'), stream_options: {include_usage: true}});
    assert.equal(await stream.finalContent(), 'Hello, world.');
    assert.ok((await stream.totalUsage()).completion_tokens > 0);
  };
  checks['thinking, streamed'] = async () => {
    let thinking = '', text = '';
    for await (const chunk of await api.chat.completions.create({...ask('plain'), stream: true}))
      for (const {delta} of chunk.choices) {
        thinking += delta.reasoning_content ?? '';
        text += delta.content ?? '';
      }
    assert.deepEqual([thinking, text], ['Short thought.', 'Hello, world.']);
  };
  checks['two parallel calls, streamed'] = async () => {
    const done = await api.chat.completions.stream(ask('two calls')).finalChatCompletion();
    assert.equal(done.choices[0].finish_reason, 'tool_calls');
    const calls = done.choices[0].message.tool_calls;
    assert.deepEqual(calls.map(c => [c.function.name, JSON.parse(c.function.arguments)]), twoCalls);
  };
  checks['a call without arguments, streamed'] = async () => {
    const done = await api.chat.completions.stream(ask('no arguments')).finalChatCompletion();
    assert.deepEqual(done.choices[0].message.tool_calls.map(c => JSON.parse(c.function.arguments)), [{}]);
  };
  checks['a streamed thinking goes back whole'] = async () => {
    const messages = [{role: 'user', content: 'run it'}], body = {model, messages, tools};
    const {message} = (await api.chat.completions.stream(body).finalChatCompletion()).choices[0];
    messages.push(message, {role: 'tool', tool_call_id: message.tool_calls[0].id, content: 'the output'});
    const {usage, timings} = await api.chat.completions.create(body);
    const first = await api.chat.completions.create({...body, messages: messages.slice(0, 1)});
    const appended = usage.prompt_tokens - first.usage.prompt_tokens - first.usage.completion_tokens;
    assert.ok(timings.prompt_n <= appended + 3, `${timings.prompt_n} rows computed, ${appended} appended`);
  };
  checks['tool runner'] = async () => {
    const asked = [];
    const runner = api.chat.completions.runTools({
      model, messages: [{role: 'user', content: 'run it'}],
      tools: [{type: 'function', function: {
        name: 'bash', description: 'Runs a command', parameters, parse: JSON.parse,
        function: a => { asked.push(a.command); return 'the output'; }}}],
    });
    assert.equal(await runner.finalContent(), 'It printed the output.');
    assert.deepEqual(asked, ['echo hi']);
  };
  checks['an error has its type'] = async () => {
    await assert.rejects(api.chat.completions.create({...ask('x'), temperature: -1}),
                         e => e instanceof OpenAI.BadRequestError && /temperature/.test(e.message));
    // Not 501: it would ask again.
    await assert.rejects(api.embeddings.create({model, input: 'x'}),
                         e => e instanceof OpenAI.BadRequestError && e.type === 'not_supported_error');
  };
  checks['responses'] = async () => {
    const tool = {type: 'function', name: 'bash', description: 'Runs a command', parameters, strict: false};
    const first = await api.responses.create({model, input: 'run it', tools: [tool, {type: 'web_search'}]});
    const call = first.output.find(i => i.type === 'function_call');
    assert.deepEqual(JSON.parse(call.arguments), {command: 'echo hi'});
    const second = await api.responses.create({
      model, tools: [tool], previous_response_id: first.id,
      input: [{type: 'function_call_output', call_id: call.call_id, output: 'the output'}]});
    assert.equal(second.output_text, 'It printed the output.');
  };
  checks['responses, streamed'] = async () => {
    const stream = api.responses.stream({model, input: 'plain'});
    const types = new Set();
    for await (const event of stream) types.add(event.type);
    assert.equal((await stream.finalResponse()).output_text, 'Hello, world.');
    for (const type of ['response.created', 'response.output_item.added', 'response.content_part.added',
                        'response.reasoning_text.delta', 'response.output_text.delta', 'response.completed'])
      assert.ok(types.has(type), type);
  };
  checks['responses, calls streamed'] = async () => {
    const tools = [{type: 'function', name: 'bash', description: 'Runs a command', parameters, strict: false}];
    for (const [input, wanted] of [['two calls', twoCalls], ['no arguments', [['bash', {}]]]]) {
      const {output} = await api.responses.stream({model, input, tools}).finalResponse();
      const calls = output.filter(i => i.type === 'function_call');
      assert.deepEqual(calls.map(c => [c.name, JSON.parse(c.arguments)]), wanted);
    }
  };
  checks['json_schema'] = async () => {
    const schema = {type: 'object', properties: {ok: {type: 'boolean'}}, required: ['ok'], additionalProperties: false};
    const r = await api.chat.completions.parse({
      model, messages: [{role: 'user', content: 'Is it?'}], chat_template_kwargs: {enable_thinking: false},
      response_format: {type: 'json_schema', json_schema: {name: 'answer', strict: true, schema}}});
    assert.equal(typeof JSON.parse(r.choices[0].message.content).ok, 'boolean');
  };
  checks['completions'] = async () => {
    const r = await api.completions.create({model, prompt: 'Hello', max_tokens: 3, temperature: 0});
    assert.equal(r.usage.completion_tokens, 3);
  };
}

async function anthropic() {
  const {default: Anthropic} = await import('@anthropic-ai/sdk');
  const api = new Anthropic({baseURL: url, apiKey: 'x'});
  const tools = [{name: 'bash', description: 'Runs a command', input_schema: parameters}];
  const ask = text => ({model: 'demo', max_tokens: 200, tools, messages: [{role: 'user', content: text}]});
  checks['messages'] = async () => {
    const r = await api.messages.create(ask('plain'));
    assert.deepEqual(r.content.map(b => b.thinking ?? b.text), ['Short thought.', 'Hello, world.']);
    assert.equal(r.stop_reason, 'end_turn');
  };
  checks['stream helper'] = async () => {
    const stream = api.messages.stream(ask('plain'));
    assert.equal(await stream.finalText(), 'Hello, world.');
    const message = await stream.finalMessage();
    assert.deepEqual(message.content.map(b => b.thinking ?? b.text), ['Short thought.', 'Hello, world.']);
    assert.ok(message.usage.output_tokens > 0 && message.usage.input_tokens > 0);
  };
  checks['two parallel calls, streamed'] = async () => {
    const message = await api.messages.stream(ask('two calls')).finalMessage();
    assert.equal(message.stop_reason, 'tool_use');
    assert.deepEqual(message.content.filter(b => b.type === 'tool_use').map(b => [b.name, b.input]), twoCalls);
    const empty = await api.messages.stream(ask('no arguments')).finalMessage();
    assert.deepEqual(empty.content.map(b => b.input), [{}]);
  };
  checks['a tool round'] = async () => {
    const first = await api.messages.create(ask('run it'));
    const call = first.content.find(b => b.type === 'tool_use');
    const second = await api.messages.create({
      ...ask(''), messages: [{role: 'user', content: 'run it'}, {role: 'assistant', content: first.content},
                             {role: 'user', content: [{type: 'tool_result', tool_use_id: call.id, content: 'the output'}]}]});
    assert.equal(second.content.at(-1).text, 'It printed the output.');
    assert.ok(second.usage.cache_read_input_tokens > 0);
  };
  checks['tool runner'] = async () => {
    for (const stream of [false, true]) {
      const asked = [];
      const bash = {...tools[0], parse: a => a, run: a => { asked.push(a.command); return 'the output'; }};
      const done = await api.beta.messages.toolRunner({...ask('run it'), tools: [bash], stream}).runUntilDone();
      assert.deepEqual([done.content.at(-1).text, asked], ['It printed the output.', ['echo hi']]);
    }
  };
  checks['count_tokens'] = async () => {
    const {max_tokens, ...body} = ask('plain');
    assert.ok((await api.messages.countTokens(body)).input_tokens > 10);
  };
  checks['an error has its type'] = async () => {
    await assert.rejects(api.messages.create({...ask('x'), temperature: -1}),
                         e => e instanceof Anthropic.BadRequestError && e.error.error.type === 'invalid_request_error');
    await assert.rejects(api.messages.create(ask('word '.repeat(5000))), /prompt is too long: \d+ tokens > 4096 maximum/);
  };
}

async function langchain() {
  const {ChatOpenAI} = await import('@langchain/openai');
  const model = new ChatOpenAI({model: 'demo', apiKey: 'x', configuration: {baseURL: url + '/v1'}});
  checks['invoke'] = async () => assert.equal((await model.invoke('plain')).content, 'Hello, world.');
  const streamed = async (from, text) => {
    let all;
    for await (const chunk of await from.stream(text)) all = all ? all.concat(chunk) : chunk;
    return all;
  };
  checks['stream'] = async () => {
    const r = await streamed(model, 'plain');
    assert.deepEqual([r.content, r.additional_kwargs.reasoning_content], ['Hello, world.', 'Short thought.']);
  };
  checks['calls'] = async () => {
    const tool = {type: 'function', function: {name: 'bash', description: 'Runs a command', parameters}};
    const bound = model.bindTools([tool]);
    for (const ask of [text => bound.invoke(text), text => streamed(bound, text)]) {
      assert.deepEqual((await ask('two calls')).tool_calls.map(c => [c.name, c.args]), twoCalls);
      assert.deepEqual((await ask('no arguments')).tool_calls.map(c => c.args), [{}]);
    }
  };
}

async function ai() {
  const {generateText, streamText, tool, jsonSchema} = await import('ai');
  const {createOpenAICompatible} = await import('@ai-sdk/openai-compatible');
  const model = createOpenAICompatible({name: 'local', baseURL: url + '/v1', includeUsage: true})('demo');
  checks['generate'] = async () => {
    const r = await generateText({model, prompt: 'plain'});
    assert.deepEqual([r.text, r.reasoningText], ['Hello, world.', 'Short thought.']);
  };
  checks['stream'] = async () => {
    const r = streamText({model, prompt: 'plain'});
    assert.deepEqual([await r.text, await r.reasoningText], ['Hello, world.', 'Short thought.']);
    assert.ok((await r.usage).inputTokens > 0);
  };
  checks['calls, streamed'] = async () => {
    const bash = tool({description: 'Runs a command', inputSchema: jsonSchema(parameters)});
    const r = streamText({model, prompt: 'two calls', tools: {bash}});
    assert.deepEqual((await r.toolCalls).map(c => [c.toolName, c.input]), twoCalls);
    const empty = streamText({model, prompt: 'no arguments', tools: {bash}});
    assert.deepEqual((await empty.toolCalls).map(c => c.input), [{}]);
  };
}

async function agents() {
  const {Agent, OpenAIProvider, Runner, setTracingDisabled, tool} = await import('@openai/agents');
  setTracingDisabled(true);
  const run = async (useResponses, stream, text, wanted) => {
    const asked = [];
    const bash = tool({
      name: 'bash', description: 'Runs a command', strict: false,
      parameters: {...parameters, additionalProperties: true},
      execute: a => { asked.push(a); return 'the output'; }});
    const runner = new Runner({modelProvider: new OpenAIProvider({baseURL: url + '/v1', apiKey: 'x', useResponses})});
    const agent = new Agent({name: 'a', instructions: 'Be brief.', model: 'demo', tools: [bash]});
    const r = await runner.run(agent, text, {stream});
    let said = '';
    if (stream) {
      for await (const piece of r.toTextStream()) said += piece;
      await r.completed;
      assert.ok(said.endsWith('It printed the output.'), said);
    }
    assert.deepEqual([r.finalOutput, asked], ['It printed the output.', wanted]);
  };
  for (const useResponses of [false, true])
    for (const stream of [false, true])
      checks[(useResponses ? 'responses' : 'chat completions') + (stream ? ', streamed' : '')] = async () => {
        await run(useResponses, stream, 'run it', [{command: 'echo hi'}]);
        await run(useResponses, stream, 'two calls', twoCalls.map(c => c[1]));
        await run(useResponses, stream, 'no arguments', [{}]);
      };
}

await ({openai, anthropic, langchain, ai, agents})[client]();
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log('ok ' + name);
  } catch (e) {
    console.log(`failed ${name}: ${e.stack}`);
    process.exitCode = 1;
  }
}
