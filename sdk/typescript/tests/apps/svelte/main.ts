import { hydrate, mount } from 'svelte';
import { millrace } from '@millrace/client';
import { server, type App as Channels } from '../channels.js';
import App from './App.svelte';

const target = document.getElementById('app')!;

// The page of server.ts is hydrated.
(target.hasChildNodes() ? hydrate : mount)(App, { target, props: { client: millrace<Channels>(server()) } });
