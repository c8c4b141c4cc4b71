// The page in headless Chromium: node server_page.mjs URL CHROMIUM FOLDER URL_NO_THINK. A conversation with thinking,
// edit, branches, failures and stop; axe-core on both colour schemes and on the width of a phone; screenshots into
// FOLDER. URL_NO_THINK: of a server with --no-think.
import assert from 'node:assert/strict';
import {createRequire} from 'node:module';
import puppeteer from 'puppeteer-core';

const [url, executablePath, folder, urlNoThink] = process.argv.slice(2);
const axe = createRequire(import.meta.url).resolve('axe-core/axe.min.js');
const browser = await puppeteer.launch({executablePath, args: ['--no-sandbox'], headless: true});
const page = await browser.newPage();
page.setDefaultTimeout(20000);
await page.setBypassCSP(true);  // for axe, which is added to the page
const problems = [];
page.on('pageerror', e => problems.push(String(e)));
page.on('console', m => { if (m.type() === 'error') problems.push(m.text()); });

const texts = () => page.$$eval('#messages li', all => all.map(e => [e.className, e.innerText]));
const idle = () => page.waitForFunction(() => document.getElementById('stop').disabled);
const press = async (label, within = '') => {
  await page.waitForSelector(`${within} button[aria-label="${label}"]:not(:disabled)`);
  await page.click(`${within} button[aria-label="${label}"]`);
};
async function say(text, meanwhile) {
  await page.type('#say', text);
  await page.keyboard.press('Enter');
  if (meanwhile) await meanwhile();
  await idle();
}
async function shot(name) {
  await page.screenshot({path: `${folder}/${name}.png`, fullPage: true});
  await page.addScriptTag({path: axe});
  const found = await page.evaluate(async () => (await axe.run()).violations.map(v => `${v.impact} ${v.id}: ${v.help}`));
  assert.deepEqual(found, [], name);
}

const value = id => page.$eval('#' + id, e => e.value);
const text = id => page.$eval('#' + id, e => e.textContent);
const think = () => page.$eval('#think', e => [e.checked, e.indeterminate]);
const temperature = t => page.$eval('#temperature', (e, t) => { e.value = t; }, t);
const asked = [];  // bodies of requests for replies
page.on('request', r => { if (r.method() === 'POST') asked.push(JSON.parse(r.postData())); });

// A message without a reply goes back to where it was written, and is not sent again with the next one.
async function failures() {
  await page.click('#clear');
  await page.$eval('#say', e => { e.value = ''; });
  for (const [typed, sent] of [['0,7', 0.7], [' 0.5 ', 0.5], ['', undefined]]) {
    await temperature(typed);
    await say('plain');
    assert.equal(asked.at(-1).temperature, sent);
  }
  for (let n = 0; n < 2; ++n) {
    await press('Again: another reply to message 5');
    await idle();
  }
  await press('Later version of message 6');
  assert.match((await texts())[5][1], /1 of 3/);
  const n = asked.length;
  for (const typed of ['abc', '0.7x', 'Infinity']) {
    await temperature(typed);
    await say('plain');
    assert.equal(await text('failure'), `The temperature is "${typed}", expected a number such as 0.7.`);
    assert.equal(await value('say'), 'plain');
    await page.$eval('#say', e => { e.value = ''; });
  }
  assert.equal(asked.length, n, 'sent without the temperature');
  await temperature('9999');
  await press('Again: another reply to message 5');
  await idle();
  assert.match(await text('failure'), /temperature is 9999/);
  assert.match((await texts())[5][1], /1 of 3/);
  await press('Edit message 3');
  await page.type('textarea[aria-label="Edited message"]', ' edited');
  await press('Send the edited message');
  await idle();
  await page.waitForSelector('textarea[aria-label="Edited message"]');
  assert.equal(await page.$eval('textarea[aria-label="Edited message"]', e => e.value), 'plain edited');
  await press('Cancel the edit');
  await temperature('');
  assert.equal((await texts()).length, 6);

  // The server is away: one poll, and its end takes the failure away.
  await page.evaluate(() => {
    window.polls = new Set();
    const [set, clear] = [setTimeout, clearTimeout];
    window.setTimeout = (f, ms) => { const id = set(f, ms); if (f === about) polls.add(id); return id; };
    window.clearTimeout = id => { polls.delete(id); clear(id); };
  });
  await page.setOfflineMode(true);
  for (let k = 0; k < 3; ++k) {
    await say('plain');
    await page.waitForFunction(() => polls.size > 0);
    assert.equal(await value('say'), 'plain');
    await page.$eval('#say', e => { e.value = ''; });
  }
  assert.equal(await page.evaluate(() => polls.size), 1);
  assert.notEqual(await text('failure'), '');
  await page.setOfflineMode(false);
  await page.waitForFunction(() => document.getElementById('failure').textContent === '');
  assert.ok(problems.every(p => /Failed to load resource/.test(p)), String(problems));
  problems.length = 0;
  await say('plain');
  assert.deepEqual(asked.at(-1).messages.map(m => m.role),
                   ['user', 'assistant', 'user', 'assistant', 'user', 'assistant', 'user']);

  await page.evaluate(() => {
    window.original = fetch;
    window.fetch = (_, {signal}) => new Promise((_, no) => { signal.onabort = () => no(signal.reason); });
  });
  await say('stopped before the first token', () => page.keyboard.press('Escape'));
  await page.evaluate(() => { window.fetch = original; });
  assert.equal(await value('say'), 'stopped before the first token');
  assert.equal((await texts()).length, 8);
  await page.$eval('#say', e => { e.value = ''; });
}

async function whatTheUserDoes() {
  await page.click('#clear');
  await say('stars');
  assert.match((await texts())[1][1],
               /    f\(\*\*kwargs, \*\*opts\)\nsrc\/\*\* and test\/\*\*, 2\*\*3\*\*4, bold and two words\./);
  assert.deepEqual(await page.$$eval('#messages strong', all => all.map(e => e.textContent)), ['bold', 'two words']);

  assert.deepEqual(await think(), [false, true]);  // the template's
  assert.equal(asked.at(-1).chat_template_kwargs, undefined);
  await say('ponder', () => page.waitForFunction(() => {
    const thinking = document.querySelector('#messages li:nth-child(4) details');
    if (thinking) thinking.open = true;
    return thinking !== null && !thinking.hidden;
  }));
  assert.equal(await page.$eval('#messages li:nth-child(4) details', e => e.open), true);

  await press('Edit message 1');
  await page.type('textarea[aria-label="Edited message"]', ' and more');
  await page.click('#think');
  await say('plain');
  assert.deepEqual(asked.at(-1).chat_template_kwargs, {enable_thinking: true});
  assert.equal((await texts()).length, 6);
  assert.equal(await page.$eval('textarea[aria-label="Edited message"]', e => e.value), 'stars and more');
  await page.$eval('textarea[aria-label="Edited message"]', e => { e.value = 'plain'; });
  await press('Send the edited message');
  await idle();
  assert.equal((await texts()).length, 2);
  await press('Earlier version of message 1');
  assert.match((await texts())[0][1], /1 of 2[\s\S]*stars/);
}

try {
  await page.emulateMediaFeatures([{name: 'prefers-color-scheme', value: 'light'}]);
  await page.goto(url);
  await page.waitForFunction(() => document.getElementById('model').textContent !== '-');
  await shot('empty');
  assert.equal(await page.$eval(':focus', e => e.id), 'say');  // keyboard: ready to write

  await say('plain');
  let all = await texts();
  assert.deepEqual(all.map(m => m[0]), ['user', 'assistant']);
  assert.match(all[1][1], /Hello, world\./);
  assert.ok(!/Short thought/.test(all[1][1]), 'thinking is closed');
  await page.click('#messages details summary');
  assert.match((await texts())[1][1], /Short thought\./);
  assert.match(await page.$eval('#rate', e => e.textContent), /^\d/);
  assert.match(await page.$eval('#why', e => e.textContent), /rows/);

  await say('more');
  assert.match((await texts())[3][1], /Rows\n\u2022 bold, code and 2 \* 3 \* 4\n\nA table:\nfor row in rows:\n    print/);
  await press('Edit message 3');
  await page.waitForSelector('textarea[aria-label="Edited message"]');
  await page.keyboard.down('Control');
  await page.keyboard.press('a');
  await page.keyboard.up('Control');
  await page.keyboard.type('plain again');
  await press('Send the edited message');
  await idle();
  all = await texts();
  assert.match(all[2][1], /2 of 2[\s\S]*plain again/);
  assert.match(all[3][1], /Hello, world\./);
  await press('Earlier version of message 3');
  assert.match((await texts())[3][1], /A table/);
  await shot('light');

  await page.setViewport({width: 1280, height: 800});
  await shot('wide');
  await page.emulateMediaFeatures([{name: 'prefers-color-scheme', value: 'dark'}]);
  await shot('dark');
  await page.setViewport({width: 360, height: 740});
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'wider than a phone');
  await shot('phone');

  await page.click('#clear');
  await page.type('#say', 'endless');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelectorAll('#messages li')[1]?.innerText.length > 60);
  assert.match(await page.$eval('#rate', e => e.textContent), /^\d/, 'the speed while it writes');
  await page.waitForFunction(() => document.querySelectorAll('#messages li')[1].innerText.length > 2000);
  await page.screenshot({path: `${folder}/writing.png`});
  const end = await page.$eval('#form', e => e.getBoundingClientRect().bottom);
  assert.ok(end > 640 && end <= 741, `the form is at ${end}, not at the end of the screen`);
  await page.keyboard.press('Escape');
  await idle();
  assert.ok((await texts())[1][1].length < 10000, 'stop does not end the reply');
  await page.waitForFunction(async () => !(await (await fetch('/slots')).json())[0].is_processing);
  assert.deepEqual(problems, []);
  await failures();
  await whatTheUserDoes();
  await page.goto(urlNoThink);
  await page.waitForFunction(() => document.getElementById('model').textContent !== '-');
  assert.deepEqual(await think(), [false, false]);
  assert.deepEqual(problems, []);
  console.log('ok page');
} finally {
  await browser.close();
}
